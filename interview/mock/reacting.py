"""Words of the interviewer about an answer that is far off, or that a run contradicts."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping

from prep_common.text import figure
from quizzes.grading import Graded, Part

FAR = 5.0
"""Factor from which a number is far off."""


def reaction(graded: Graded, texts: Mapping[str, str], *, ran: bool) -> str:
    """Return what the interviewer says of an answer before the explanation; "" if nothing is far off.

    texts: those of options, by id. ran: whether a run showed the truth, which is otherwise left to the report."""
    said = [_of_option(part, texts, ran) or _of_number(part, ran) for part in graded.parts if not part.ok]
    return " ".join(sentence for sentence in dict.fromkeys(said) if sentence)


def _of_option(part: Part, texts: Mapping[str, str], ran: bool) -> str:
    if not ran or part.id != "choice":
        return ""
    chosen = ", ".join(f'"{texts.get(option, str(option)).rstrip(".")}"' for option in part.given)
    return f"The run contradicts {chosen}."


def _of_number(part: Part, ran: bool) -> str:
    numbers = (part.given, part.expected)
    if not all(isinstance(number, int | float) and abs(number) <= sys.float_info.max for number in numbers):
        return ""
    if part.given * part.expected <= 0:
        return ""
    factor = max(part.given / part.expected, part.expected / part.given)
    if not FAR < factor < math.inf:
        return ""
    if not ran:
        return f"That figure is off by more than a factor of {FAR:g}. Let us go on."
    unit = f" {part.unit}" if part.unit else ""
    how = "high" if abs(part.given) > abs(part.expected) else "low"
    return (
        f"You said {figure(part.given)}{unit}, which is {figure(float(f'{factor:.2g}'))} times too {how}: hold such a "
        "figure against a bound before you say it."
    )

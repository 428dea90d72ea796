"""Evidence from replies: a value from 1 to 5 on an axis, with the reason and the words that it rests on.

Machine evidence decides: graded numbers, intervals, options, runs, looks at an incident, time. Prose: `prose.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from interview.mock.estimates import closeness, interval_value
from prep_common.text import counted, figure
from quizzes.grading import Graded, Part
from quizzes.question import Answer

if TYPE_CHECKING:
    from interview.drills.score import Score

SURE = 80
"""Confidence, in percent, from which an answer below RESCUED counts twice, and earns 1 less."""
RESCUED = 3.0
"""Most that a step with a hint can show."""
UNSURE = 50
"""Confidence below which a right option may be a guess. An answer without a confidence counts as one of UNSURE."""
NEARLY = 4.5
"""Most that a right option earns for a candidate who was less than SURE."""
ADMITTED = 2.0
"""Least that a wrong option earns for a candidate who was less than UNSURE: they knew that they did not know."""
STAKES = (
    f"A right option earns at most {RESCUED:g} of 5 points below {UNSURE} %, and {NEARLY:g} below {SURE} %; a wrong "
    f"one earns {ADMITTED:g} below {UNSURE} %. From {SURE} %, a wrong option counts twice, and a number off by more "
    "than a factor of 2 counts twice and earns 1 less."
)
"""Effect of the confidence on the marks, for the help."""
ASSUMED = f"Without a confidence, {UNSURE} % is assumed."
"""Help where the confidence may be left out."""
SURPRISE_WEIGHT = 2.0
"""Weight of a wrong answer of a candidate who was SURE."""
PROSE_WEIGHT = 2.0
"""Weight of an explanation as evidence of mechanism, beside that of one probe."""
MORE_THAN_NEEDED = 3.0
"""Least that a solved incident earns, whatever its looks cost."""
VAIN = 0.25
"""Value that each point of cost loses which the looks of an incident had beyond the cheapest that decide."""
COSTS = ((1.3, 5.0), (2.0, 4.0), (4.0, 3.0))
"""Cost of a design that meets its goals, relative to the reference -> its value. One that buys more earns LAVISH."""
LAVISH = 2.0
Kind = Literal["words", "option", "number", "program", "design", "incident"]


@dataclass(frozen=True)
class Evidence:
    """One observation."""

    axis: str
    value: float
    """1 to 5."""
    why: str
    step: str
    """Scenario and step: "inference.stalled_streams/path"."""
    weight: float = 1.0
    kind: Kind = "words"
    """Source of it. An option is one of a few, which a guess may find; so is the cause of an incident that was not
    solved."""

    @property
    def observations(self) -> int:
        """Return how many observations it counts as: an explanation with its probes as two, all others as one."""
        return 2 if self.kind == "words" and self.weight >= PROSE_WEIGHT else 1


def value_of(step: str, evidence: Sequence[Evidence]) -> float | None:
    """Return the mean of a step's evidence without communication; None without any."""
    values = [piece.value for piece in evidence if piece.step == step and piece.axis != "communication"]
    return sum(values) / len(values) if values else None


def of_answers(
    graded: Graded,
    axes: Sequence[str],
    step: str,
    *,
    rescued: bool,
    confidence: int | None = None,
    texts: Mapping[str, str] | None = None,
) -> list[Evidence]:
    """Return the evidence of typed answers and options. texts: those of options and the names of answers, by id."""
    most = RESCUED if rescued else 5.0
    is_guessable = all(part.id == "choice" or isinstance(part.expected, bool) for part in graded.parts)
    value = sum(map(closeness, graded.parts)) / len(graded.parts)
    if is_guessable and confidence is not None:
        value = with_confidence(value, confidence)
    value = min(most, value)
    given = "; ".join(_in_words(part, texts or {}) for part in graded.parts)
    weight, twice = _surprise(value, confidence)
    reduced = max(1.0, value - (weight > 1))
    less = " and earns 1 less" if reduced < value else ""
    kind: Kind = "option" if is_guessable else "number"
    pieces = [
        Evidence(axis, reduced, f"{given}{twice}{less}", step, weight, kind)
        for axis in axes
        if axis not in ("quantification", "communication")
    ]
    if "quantification" in axes:
        estimates = [min(most, interval_value(part)) for part in graded.parts if _is_number(part)]
        kind = "number" if estimates else "option"
        value = sum(estimates) / len(estimates) if estimates else reduced
        if weight > 1:  # the number is far from the truth; its interval may hold
            weight, twice = _surprise(value, confidence)
        pieces.append(Evidence("quantification", value, f"{given}{twice}", step, weight, kind))
    return pieces


def _surprise(value: float, confidence: int | None) -> tuple[float, str]:
    """Return the weight of a value in the light of the confidence, and the words for it."""
    if confidence is None or confidence < SURE or value >= RESCUED:
        return 1.0, ""
    return SURPRISE_WEIGHT, f"; {confidence} % sure, so it counts twice"


def with_confidence(value: float, confidence: int) -> float:
    """Return the value of an option, from 1 (wrong) to 5 (right), in the light of the candidate's confidence."""
    if confidence < UNSURE:  # one of three or four options: a guess is right often enough
        return max(ADMITTED, min(RESCUED, value))
    return value if confidence >= SURE else min(NEARLY, value)


def _is_number(part: Part) -> bool:
    return isinstance(part.expected, int | float) and not isinstance(part.expected, bool)


def kind_of(answers: Sequence[Answer]) -> Kind:
    """Return the kind of evidence that typed answers give; an option if there are none."""
    return "number" if any(answer.type != "bool" for answer in answers) else "option"


def of_silence(axes: Sequence[str], step: str, kind: Kind = "words") -> list[Evidence]:
    """Return the evidence of a step that was passed."""
    return [Evidence(axis, 1.0, "no answer", step, kind=kind) for axis in axes]


def of_pace(late: int, steps: int, *, explained: bool, asked: bool) -> list[Evidence]:
    """Return the evidence of a whole session: the share of steps in time. A candidate who explained nothing, or asked
    nothing, cannot earn a 5 by being quick."""
    if not steps:
        return []
    most, limit = 5.0, ""
    if not explained:
        most, limit = 2.0, "no explanation that its follow-ups confirm"
    elif not asked:
        most, limit = 4.0, "no fact was asked for"
    value, why = 5.0 - 4.0 * late / steps, f"{steps - late} of {counted(steps, 'answer')} in time"
    if value > most:
        value, why = most, f"{why}, but {limit}: at most {most:g}"
    return [Evidence("communication", value, why, "self", 0.5)]


def of_canvas(
    goals_met: Sequence[bool],
    cost: float,
    reference: float,
    axes: Sequence[str],
    step: str,
    tries: int,
    *,
    weight: float = 1.0,
) -> list[Evidence]:
    """Return the evidence of a design under one set of conditions: goals met, and its cost against the reference."""
    share = sum(goals_met) / len(goals_met)
    met = f"{sum(goals_met)} of {len(goals_met)} goals met"
    if share < 1:
        value = 1.0 + 2.0 * share
    elif not reference:
        value = 4.0  # nothing to compare with
    else:
        value = next((value for most, value in COSTS if cost <= most * reference), LAVISH)
    after = counted(tries, "try")
    why = f"{met}, {cost / reference:.2f} x the reference's cost, {after}" if reference else met
    return [Evidence(axis, value, why, step, weight, "design") for axis in axes if axis != "communication"]


def of_drill(
    score: Score, fixes: int, axes: Sequence[str], step: str, confidence: int = UNSURE, *, least: int
) -> list[Evidence]:
    """Return the evidence of an incident: the score of its drill, less what its looks cost in vain. fixes: number of
    repairs that were tried. least: cost of the cheapest looks that decide."""
    named = "cause found" if score.cause else "wrong cause"
    decided = "figure that decides named" if score.evidence else "no figure that decides"
    ended = f"{'solved' if score.fix else 'not solved'} with {counted(fixes, 'repair')}"
    vain = max(0, score.cost - least)
    looks = f"looks cost {score.cost}" + (f" where {least} would do" if vain else "")
    why = f"{named}, {decided}, {ended}, {looks}: {score.total} of 100 points"
    most = max(MORE_THAN_NEEDED, 5.0 - VAIN * vain)
    kind: Kind = "incident" if score.is_solved else "option"
    pieces = []
    for axis in axes:
        value, words = min(most, 1.0 + score.total / 25), why
        if axis == "communication":
            continue
        if axis == "correctness":
            value, words = 5.0 if score.cause else 1.0, named
        weight, twice = (1.0, "") if score.cause else _surprise(value, confidence)
        pieces.append(Evidence(axis, value, f"{words}{twice}", step, weight, kind))
    return pieces


def of_reverse(tests: Sequence[bool], flaw: bool, axes: Sequence[str], step: str) -> list[Evidence]:
    """Return the evidence of a refutation. tests: whether each chosen experiment refuted; flaw: it was named."""
    refuted = bool(tests) and tests[-1]
    value = 1.0 if not refuted else (5.0 if len(tests) == 1 else 3.0) - (not flaw)
    why = f"refuted with experiment {len(tests)}" if refuted else "no experiment refuted it"
    pieces = [
        Evidence(axis, value, why, step, kind="option")
        for axis in axes
        if axis not in ("communication", "correctness")
    ]
    if "correctness" in axes:
        named = "flaw named" if flaw else "wrong flaw"
        pieces.append(Evidence("correctness", 5.0 if flaw else 1.0, named, step, kind="option"))
    return pieces


def of_code(passed: int, failed: int, tries: int, axes: Sequence[str], step: str) -> list[Evidence]:
    """Return the evidence of a program: the share of its checks that pass."""
    total = passed + failed
    value = 1.0 + 4.0 * passed / total if total else 1.0
    if tries > 3:
        value = max(1.0, value - 0.5)
    why = f"{passed} of {total} checks pass after {counted(tries, 'try')}"
    return [Evidence(axis, value, why, step, kind="program") for axis in axes if axis != "communication"]


def _in_words(part: Part, texts: Mapping[str, str]) -> str:
    given, expected = _shown(part.given, texts), _shown(part.expected, texts)
    unit = f" {part.unit}" if part.unit else ""
    name = "" if part.id == "choice" else f"{texts.get(part.id) or part.id.replace('_', ' ')}: "
    shown = f"{name}said {given}{unit}"
    if part.interval is not None:
        shown += f" ({figure(part.interval[0])} to {figure(part.interval[1])})"
    return f"{shown}, {'right' if part.ok else f'it is {expected}{unit}'}"


def _shown(value: object, texts: Mapping[str, str]) -> str:
    if isinstance(value, list):
        return ", ".join(f'"{texts[option]}"' if option in texts else str(option) for option in value)
    return figure(value)

"""The score of a session: cause 40, evidence 20, fix 30, looks 10. Confidence has a score of its own.

Evidence counts in full if two deciding figures are named (or the only one), and no more figures that do not decide.
The first statement of the cause is the forecast: it earns all points, and its confidence has a score. A right cause
after a wrong first one earns CHANGED points. A cause that is first stated after a fix has worked is no forecast: it
earns LATE points, and its confidence has no score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from interview.drills.drill import Drill
from interview.drills.figures import LOOKS
from interview.drills.looks import figures_of
from prep_common.text import counted
from quizzes.learning.calibration import Forecast, brier_score

MOST = {"cause": 40, "evidence": 20, "fix": 30, "looks": 10}
"""Part of the score -> its points."""
CHANGED, LATE = 30, 20
"""Points of the right cause if it was not the first one, and if it was stated after a fix had worked."""
CHEAP = 4
"""Cost of looks that loses no point."""
WANTED = 2
"""Deciding figures to name for all points of the evidence; one if there is only one."""
MOST_NAMED = 4
"""Figures that a hypothesis may name."""
PASS = 70


class Guess(NamedTuple):
    """A statement of the cause."""

    cause: str
    confidence: int
    """1 to 99 percent."""
    evidence: Sequence[str]
    """Names of figures."""


@dataclass(frozen=True)
class Score:
    cause: int
    evidence: int
    fix: int
    looks: int
    brier: float | None
    cost: int
    seconds: int

    @property
    def total(self) -> int:
        return self.cause + self.evidence + self.fix + self.looks

    @property
    def is_solved(self) -> bool:
        """Cause, evidence and fix: a guess without a look solves nothing."""
        return self.cause > 0 and self.evidence > 0 and self.fix > 0


def score(
    drill: Drill,
    looked: list[str],
    guesses: Sequence[Guess],
    helped_by: int | None,
    seconds: float,
    *,
    is_late: bool = False,
) -> Score:
    """Score what was done so far.

    Args:
        drill: held in the session.
        looked: names of looks.
        guesses: every statement of the cause, in order; the last one names the evidence.
        helped_by: number of fixes tried up to the first one that helped; None if none did.
        seconds: since the start.
        is_late: whether a fix had worked before the cause was stated.
    """
    is_right = bool(guesses) and guesses[-1].cause == drill.cause
    was_right = bool(guesses) and guesses[0].cause == drill.cause
    evidence, _ = evidence_of(drill, looked, guesses[-1].evidence if guesses else ())
    cost = sum(LOOKS[name].cost for name in looked)
    return Score(
        (LATE if is_late else MOST["cause"] if was_right else CHANGED) if is_right else 0,
        evidence,
        max(10, 30 - 10 * (helped_by - 1)) if helped_by else 0,
        max(0, 10 - max(0, cost - CHEAP)) if looked else 0,
        brier_score([Forecast(guesses[0].confidence, was_right)]) if guesses and not is_late else None,
        cost,
        round(seconds),
    )


def evidence_of(drill: Drill, looked: list[str], named: Sequence[str]) -> tuple[int, str]:
    """Return the points of the named figures, and what is missing to all points; "" if nothing is."""
    seen = figures_of(looked)
    decides = [name for name in named if name in drill.evidence and name in seen]
    others = [name for name in named if name not in drill.evidence]
    wanted = min(WANTED, len(drill.evidence))
    if not decides:
        return 0, "none of the named figures decides" if named else "no figure was named"
    if len(others) > len(decides):
        return 10, f"{counted(len(others), 'named figure')} of {len(named)} decide nothing"
    if len(decides) < wanted:
        return 10, f"{len(decides)} of {wanted} figures that decide together was named"
    return 20, ""

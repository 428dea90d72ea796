"""The score of a session: cause 40, evidence 20, fix 30, looks 10. Confidence has a score of its own.

Evidence counts in full if two deciding figures are named (or the only one), and no more figures that do not decide. A
cause that is stated after a fix has worked is no forecast: it gets half the points, and no score of the confidence.
"""

from __future__ import annotations

from dataclasses import dataclass

from common.text import counted
from interview.drills.drill import Drill
from interview.drills.figures import LOOKS
from interview.drills.looks import figures_of
from quizzes.learning.calibration import Forecast, brier_score

MOST = {"cause": 40, "evidence": 20, "fix": 30, "looks": 10}
"""Part of the score -> its points."""
CHEAP = 4
"""Cost of looks that loses no point."""
MOST_NAMED = 4
"""Figures that a hypothesis may name."""
PASS = 70


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
    guessed: tuple[str, int, list[str]] | None,
    num_fixes: int,
    is_fixed: bool,
    seconds: float,
    *,
    is_late: bool = False,
) -> Score:
    """Score what was done so far.

    Args:
        drill: held in the session.
        looked: names of looks.
        guessed: cause, confidence in percent, names of figures; None before the hypothesis.
        num_fixes: tried so far.
        is_fixed: whether one of them restored the objective.
        seconds: since the start.
        is_late: whether a fix had worked before the cause was stated.
    """
    cause, confidence, named = guessed or ("", 0, [])
    is_right = cause == drill.cause
    evidence, _ = evidence_of(drill, looked, named)
    cost = sum(LOOKS[name].cost for name in looked)
    return Score(
        (20 if is_late else 40) if is_right else 0,
        evidence,
        max(10, 30 - 10 * (num_fixes - 1)) if is_fixed else 0,
        max(0, 10 - max(0, cost - CHEAP)) if looked else 0,
        brier_score([Forecast(confidence, is_right)]) if guessed and not is_late else None,
        cost,
        round(seconds),
    )


def evidence_of(drill: Drill, looked: list[str], named: list[str]) -> tuple[int, str]:
    """Return the points of the named figures, and what is missing to all points; "" if nothing is."""
    seen = figures_of(looked)
    decides = [name for name in named if name in drill.evidence and name in seen]
    others = [name for name in named if name not in drill.evidence]
    wanted = min(2, len(drill.evidence))
    if not decides:
        return 0, "none of the named figures decides" if named else "no figure was named"
    if len(others) > len(decides):
        return 10, f"{counted(len(others), 'named figure')} of {len(named)} decide nothing"
    if len(decides) < wanted:
        return 10, f"{len(decides)} of {wanted} figures that decide together was named"
    return 20, ""

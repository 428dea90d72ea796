"""The score of a session: cause 40, evidence 20, fix 30, looks 10. Confidence has a score of its own."""

from __future__ import annotations

from dataclasses import dataclass

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
) -> Score:
    """Score what was done so far.

    Args:
        drill: held in the session.
        looked: names of looks.
        guessed: cause, confidence in percent, names of figures; None before the hypothesis.
        num_fixes: tried so far.
        is_fixed: whether one of them restored the objective.
        seconds: since the start.
    """
    cause, confidence, named = guessed or ("", 0, [])
    is_right = cause == drill.cause
    seen = figures_of(looked)
    decides = [name for name in named if name in drill.evidence and name in seen]
    wrong = [name for name in named if name not in drill.evidence]
    evidence = 0 if not decides else 20 if len(wrong) <= len(decides) else 10
    cost = sum(LOOKS[name].cost for name in looked)
    return Score(
        40 if is_right else 0,
        evidence,
        max(10, 30 - 10 * (num_fixes - 1)) if is_fixed else 0,
        max(0, 10 - max(0, cost - CHEAP)) if looked else 0,
        brier_score([Forecast(confidence, is_right)]) if guessed else None,
        cost,
        round(seconds),
    )

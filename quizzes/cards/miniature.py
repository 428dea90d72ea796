"""Run the claim of a paper's card in miniature.

outcome = reproduce(card, run)      # run(experiment, args) -> result, as in quizzes.claims.court
outcome.holds, outcome.shows
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quizzes.cards.card import PaperCard
from quizzes.experiments.registry import get
from quizzes.expressions import evaluate
from quizzes.instance import render_text

Run = Callable[[str, dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Reproduced:
    """Outcome of a miniature."""

    holds: bool
    shows: str
    """Finding of the run, with its numbers."""
    args: dict[str, Any]
    """All arguments, with defaults."""
    result: dict[str, Any]


def reproduce(card: PaperCard, run: Run) -> Reproduced:
    """Run the experiment and decide the claim. Raises what `run` raises, or ExpressionError for a broken card."""
    miniature = card.miniature
    args = get(miniature.run).check(miniature.args)
    result = run(miniature.run, args)
    names = {"result": result, "args": args}
    shows = " ".join(render_text(miniature.shows, names).split())
    return Reproduced(bool(evaluate(miniature.holds, names)), shows, args, result)

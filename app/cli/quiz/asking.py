"""Ask the items of a sitting in turn, then print a summary: points, surprises, calibration."""

from __future__ import annotations

import time
from collections.abc import Iterable
from statistics import mean
from typing import Any

from rich.markup import escape

from app.cli import terminal
from app.cli.quiz import showing
from app.cli.quiz.code import ask_code
from app.cli.quiz.dialogue import Quit, Skip
from app.cli.quiz.free_text import ask_free
from app.cli.quiz.menu import Menu
from app.cli.quiz.sitting import Sitting
from app.cli.run import plain
from prep_common.text import counted
from quizzes.answering import Record
from quizzes.instance import QuestionError, draw
from quizzes.learning.calibration import Forecast, brier_score
from quizzes.learning.review import SURE

STATUSES = ("right", "reviewed", "partly", "wrong", "skipped", "unscored")
NO_POINTS = ("reviewed", "skipped", "unscored")
"""Statuses without points."""


def ask_all(
    sitting: Sitting, items: Iterable[tuple[str, int]], *, first: int = 1, total: int | None = None
) -> bool:
    """Ask questions by (id, seed). Return True if all were asked, False if the learner quit or the time was up.

    total: number of items, where an iterator chooses them during the sitting.
    """
    if total is None:
        items = list(items)
        total = first - 1 + len(items)
    for number, (question_id, seed) in enumerate(items, first):
        if sitting.deadline is not None and time.monotonic() > sitting.deadline:
            sitting.say("\n[bold yellow]time is up[/]")
            return False
        try:
            _ask(sitting, question_id, seed, number, total)
        except (Quit, KeyboardInterrupt) as left:
            if sitting.records and sitting.records[-1].status == "asking":
                sitting.records.pop()
            sitting.interrupted = isinstance(left, KeyboardInterrupt)
            return False
        except QuestionError as error:
            terminal.tell_error(
                f"{error}; the question is left out", "prep bank lint says what is wrong with it"
            )
    return True


def _ask(sitting: Sitting, question_id: str, seed: int, number: int, total: int) -> None:
    """Ask one item, from its prompt to its explanation."""
    question = sitting.bank.question(question_id)
    instance = draw(question, seed)
    sitting.show(instance, number, total)
    if question.experiment is not None:
        sitting.runner.warm(question.experiment.run)
    record = Record(question.id, seed, "asking")
    sitting.records.append(record)
    try:
        if question.kind in ("free", "design"):
            ask_free(sitting, instance, record)
        elif question.kind == "code":
            ask_code(sitting, instance, record)
        elif graded := sitting.ask_graded(instance, record):
            Menu(sitting, instance, *graded).run()
    except Skip:
        record.status = "skipped"
        sitting.say(" [dim]skipped[/]")


def figures(records: list[Record]) -> dict[str, Any]:
    """Return the summary as numbers. Scripts read these field names from --json."""
    asked = [record for record in records if record.status not in NO_POINTS]
    brier = brier_score(_forecasts(records))
    return {
        "items": len(records),
        **{status: sum(record.status == status for record in records) for status in STATUSES},
        "points": round(sum(record.points for record in asked), 3),
        "points_max": round(sum(record.points_max for record in asked), 3),
        "surprises": sum(_is_surprise(record) for record in asked),
        "brier": None if brier is None else round(brier, 4),
    }


def show(sitting: Sitting) -> None:
    """Print the summary, and after an exam the verdict on each item."""
    where = showing.console()
    records = sitting.records
    totals = figures(records)
    if not records:
        return
    where.print()
    showing.rule(where)
    if sitting.exam:
        _verdicts(sitting)
    parts = [f"{totals['right']} right", f"{totals['partly']} partly", f"{totals['wrong']} wrong"]
    parts += [f"{totals[name]} {name}" for name in NO_POINTS if totals[name]]
    where.print(f" [bold]{totals['points']:g} of {totals['points_max']:g} points[/]   {', '.join(parts)}")
    if totals["surprises"]:
        where.print(f" {counted(totals['surprises'], 'surprise')}: you were sure and wrong")
    forecasts = _forecasts(records)
    if forecasts:
        said = mean(forecast.confidence for forecast in forecasts)
        was = 100 * mean(forecast.correct for forecast in forecasts)
        where.print(
            f" mean confidence {said:.0f} %, {was:.0f} % right (n={len(forecasts)}); "
            f"Brier score {totals['brier']:.2f}, lower is better"
        )


def _verdicts(sitting: Sitting) -> None:
    """Print the verdicts that an exam held back."""
    where = showing.console()
    for number, record in enumerate(sitting.records, 1):
        question = sitting.bank.question(record.question_id)
        ok = {"right": True, "wrong": False, "partly": False}.get(record.status)
        where.print(
            f" {number:>2}  {terminal.mark(ok) if ok is not None else '-'} {record.status:<8} "
            f"{question.title}  [dim]{record.question_id}[/]",
            soft_wrap=not where.is_terminal,
        )
        if record.status in ("wrong", "partly"):
            instance = draw(question, record.seed)
            for key, value in record.expected.items():
                if key == "choice":
                    texts = {choice.id: choice.text for choice in question.choices}
                    value = "; ".join(instance.render(texts[v]) for v in value)
                given = record.replies.get(key, "-")
                where.print(f"        [dim]{key}: you {escape(str(given))}, right {plain(value)}[/]")


def _is_surprise(record: Record) -> bool:
    return record.status in ("wrong", "partly") and (record.confidence or 0) >= SURE


def _forecasts(records: list[Record]) -> list[Forecast]:
    """Return the confidences of graded items."""
    return [
        Forecast(record.confidence, record.status == "right")
        for record in records
        if record.confidence is not None and record.status not in NO_POINTS
    ]

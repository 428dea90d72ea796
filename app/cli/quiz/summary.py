"""Summary of a sitting: points, surprises, calibration."""

from __future__ import annotations

from statistics import mean
from typing import Any

from rich.markup import escape

from app.cli import terminal
from app.cli.quiz import showing
from app.cli.quiz.sitting import Record, Sitting
from app.cli.run import plain
from quizzes.learning.calibration import Forecast, brier_score
from quizzes.learning.review import SURE


def figures(records: list[Record]) -> dict[str, Any]:
    """Return the summary as numbers. Scripts read these field names from --json."""
    asked = [record for record in records if record.status not in ("skipped", "unscored")]
    brier = brier_score(_forecasts(records))
    return {
        "items": len(records),
        "right": sum(record.status == "right" for record in asked),
        "partly": sum(record.status == "partly" for record in asked),
        "wrong": sum(record.status == "wrong" for record in asked),
        "skipped": sum(record.status == "skipped" for record in records),
        "unscored": sum(record.status == "unscored" for record in records),
        "points": round(sum(record.points for record in asked), 3),
        "points_max": round(sum(record.points_max for record in asked), 3),
        "surprises": sum(_is_surprise(record) for record in asked),
        "brier": None if brier is None else round(brier, 4),
    }


def show(sitting: Sitting) -> None:
    """Print the summary, and after an exam the verdict on each item."""
    where = showing.console()
    records = sitting.records
    found = figures(records)
    if not records:
        return
    where.print()
    showing.rule(where)
    if sitting.exam:
        _verdicts(sitting)
    parts = [f"{found['right']} right", f"{found['partly']} partly", f"{found['wrong']} wrong"]
    parts += [f"{found[name]} {name}" for name in ("skipped", "unscored") if found[name]]
    where.print(f" [bold]{found['points']:g} of {found['points_max']:g} points[/]   {', '.join(parts)}")
    if found["surprises"]:
        where.print(
            f" {found['surprises']} surprise{'s' * (found['surprises'] > 1)}: you were sure and wrong"
        )
    forecasts = _forecasts(records)
    if forecasts:
        said = mean(forecast.confidence for forecast in forecasts)
        was = 100 * mean(forecast.correct for forecast in forecasts)
        where.print(
            f" mean confidence {said:.0f} %, {was:.0f} % right (n={len(forecasts)}); "
            f"Brier score {found['brier']:.2f}, lower is better"
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
            from quizzes.instance import draw

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
        if record.confidence is not None and record.status not in ("skipped", "unscored")
    ]

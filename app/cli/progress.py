"""`prep progress`: scores per topic, calibration, and readiness with its formula."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli import terminal
from app.cli.settings import JsonOption

if TYPE_CHECKING:
    from quizzes.learning.calibration import Calibration, OwnMarks
    from quizzes.learning.progress import Progress, TopicProgress
    from quizzes.question_bank import Bank
    from quizzes.state import State

app = terminal.command_app()


@app.command()
def progress(
    topics: Annotated[bool, typer.Option("--topics", help="Show only the topics.")] = False,
    calibration: Annotated[bool, typer.Option("--calibration", help="Show only the calibration.")] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a self-contained page.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show your scores per topic, calibration and readiness.

    \b
    Examples:
      prep progress
      prep progress --calibration
      prep progress --html progress.html
    """
    from app.cli.quiz.start import open_bank, open_state

    bank = open_bank()
    with open_state() as state:
        if html is not None:
            _write_page(html, bank, state)
        if json:
            _print_json(bank, state)
        elif html is None:
            show(bank, state, topics=topics or not calibration, calibration=calibration or not topics)


def show(bank: Bank, state: State, *, topics: bool = True, calibration: bool = True) -> None:
    """Print the tables, then the readiness."""
    from quizzes.learning.calibration import calibration as calibrate
    from quizzes.learning.calibration import own_marks
    from quizzes.learning.progress import progress as standing

    found = standing(bank, state)
    if topics:
        _show_topics(found)
    if calibration:
        attempts = state.attempts(scored=True)
        _show_calibration(calibrate(attempts, state.votes()), own_marks(attempts))
    if topics:
        _show_readiness(found, state)
        _show_suspended(bank, state)
    due = found.due
    if due:
        terminal.next_command("prep review", f"{due} due")
    else:
        terminal.next_command(
            f"prep quiz --topic {found.lever}" if found.lever else "prep quiz", "has the most to gain"
        )


def bar(fraction: float, width: int = 10) -> str:
    """Draw a fraction as a bar."""
    full = round(min(max(fraction, 0.0), 1.0) * width)
    on, off = ("█", "░") if terminal.unicode_ok() else ("#", "-")
    return on * full + off * (width - full)


def _show_topics(found: Progress) -> None:
    table = terminal.table("topic", "seen", "right", "recall now", "surprises", "due", "readiness")
    for topic in found.topics:
        table.add_row(*_row(topic))
    terminal.out().print(table)


def _row(topic: TopicProgress) -> tuple[str, ...]:
    return (
        topic.topic.replace("_", " "),
        f"{topic.seen}/{topic.available}",
        _percent(topic.accuracy),
        _percent(topic.retention),
        str(topic.surprises or "-"),
        str(topic.due or "-"),
        f"{bar(topic.readiness / 100)} {topic.readiness:3.0f}",
    )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _show_calibration(found: Calibration | None, own: OwnMarks | None) -> None:
    from quizzes.learning.calibration import LEAST

    console = terminal.out()
    if found is None:
        console.print("calibration: you have not given a confidence yet\n")
        return
    console.print(
        f"[bold]calibration[/]  mean confidence {found.said:.0%}, right {found.was:.0%}  (n={found.n})   "
        f"Brier {found.brier:.2f}"
    )
    if found.bins:
        console.print("  sure  " + " ".join(f"{b.said:>5.0%}" for b in found.bins))
        console.print("  right " + " ".join(f"{b.was:>5.0%}" for b in found.bins))
        console.print("  n     " + " ".join(f"{b.n:>5}" for b in found.bins), style="dim")
    else:
        console.print(f"  [dim]each level of confidence is shown once it has {LEAST} answers[/]")
    for interval in found.intervals:
        words = f"  {interval.level:.0%} intervals contained {interval.hit_rate:.0%} of the answers  (n={interval.n})"
        if interval.widen is not None and interval.hit_rate < interval.level:
            words += f": make them {interval.widen:.1f} times as wide"
        console.print(words)
    if own is not None:
        how = "higher" if own.over > 0 else "lower"
        console.print(f"  you mark your own prose {abs(own.over):.2f} {how} than its probes  (n={own.n})")
    console.print()


def _show_readiness(found: Progress, state: State) -> None:
    from quizzes.learning.progress import FORMULA

    settings = state.settings
    who = ", ".join(filter(None, (settings.role, settings.level))) or "all roles"
    console = terminal.out()
    console.print(f"[bold]readiness {found.readiness:.0f} of 100[/] for {who}")
    console.print(f"[dim]{FORMULA}[/]")


def _show_suspended(bank: Bank, state: State) -> None:
    from quizzes.learning.review import cards

    for card in cards(state).values():
        if card.suspended and card.question_id in bank:
            terminal.print_line(
                f"suspended: {card.question_id}  [dim]prep review --resume {card.question_id}[/]"
            )


def _print_json(bank: Bank, state: State) -> None:
    from quizzes.learning.calibration import calibration as calibrate
    from quizzes.learning.calibration import own_marks
    from quizzes.learning.progress import FORMULA
    from quizzes.learning.progress import progress as standing

    found = standing(bank, state)
    attempts = state.attempts(scored=True)
    calibrated, own = calibrate(attempts, state.votes()), own_marks(attempts)
    terminal.print_json(
        {
            **asdict(found),
            "formula": FORMULA,
            "calibration": None if calibrated is None else asdict(calibrated),
            "own_marks": None if own is None else asdict(own),
        }
    )


def _write_page(path: Path, bank: Bank, state: State) -> None:
    from app.cli.progress_page import page
    from common.paths import write_atomically
    from quizzes.learning.calibration import calibration as calibrate
    from quizzes.learning.progress import progress as standing

    found = page(standing(bank, state), calibrate(state.attempts(scored=True), state.votes()), state.settings)
    write_atomically(path, found)
    terminal.err().print(f"{terminal.mark(True)} {terminal.literal(path)}", soft_wrap=True)

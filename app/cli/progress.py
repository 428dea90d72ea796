"""`prep progress`: scores per topic, calibration, and readiness with its formula."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from app.cli import terminal
from app.cli.options import JsonOption, make_folder_of, option
from app.cli.quiz.start import open_bank
from prep_common.paths import write_atomically
from quizzes.learning.calibration import LEAST, Calibration, OwnMarks, own_marks
from quizzes.learning.calibration import calibration as calibrate
from quizzes.learning.progress import FORMULA, TopicProgress
from quizzes.learning.progress import progress as standing
from quizzes.learning.review import cards
from quizzes.question_bank import Bank
from quizzes.state import State


def progress(
    topics: Annotated[bool, option("Show only the topics.", "--topics")] = False,
    calibration: Annotated[bool, option("Show only the calibration.", "--calibration")] = False,
    html: Annotated[Path | None, option("Write a self-contained page.", metavar="FILE")] = None,
    json: JsonOption = False,
) -> None:
    """Show your scores per topic, calibration and readiness.

    \b
    Examples:
      prep progress
      prep progress --calibration
      prep progress --html progress.html
    """
    make_folder_of(html)
    bank = open_bank()
    with State.open_to_read() as state:  # not open_state: zeros in place of lost answers would mislead
        figures = _figures(state)
        if html is not None:
            from app.cli.progress_page import page

            write_atomically(html, page(standing(bank, state), figures[0], state.settings))
            terminal.note(f"{terminal.mark(True)} {terminal.literal(html)}")
        if json:
            calibrated, own = (None if figure is None else asdict(figure) for figure in figures)
            more = {"formula": FORMULA, "calibration": calibrated, "own_marks": own}
            terminal.print_json({**asdict(standing(bank, state)), **more})
        elif html is None:
            show(bank, state, topics=topics or not calibration, calibration=calibration or not topics)


def _figures(state: State) -> tuple[Calibration | None, OwnMarks | None]:
    attempts = state.attempts(scored=True)
    return calibrate(attempts, state.votes()), own_marks(attempts)


def show(bank: Bank, state: State, *, topics: bool = True, calibration: bool = True) -> None:
    """Print the tables, then the readiness."""
    overall, settings = standing(bank, state), state.settings
    headings = ("topic", "seen", "right", "recall now", "surprises", "due", "readiness")
    if topics:
        terminal.out().print(terminal.table(*headings, rows=map(_row, overall.topics)))
    if calibration:
        _show_calibration(*_figures(state))
    if topics:
        who = ", ".join(filter(None, (settings.role, settings.level))) or "all roles"
        terminal.out().print(
            f"[bold]readiness {overall.readiness:.0f} of 100[/] for {who}\n[dim]{FORMULA}[/]"
        )
        for name, card in cards(state).items():
            if card.suspended and name in bank:
                terminal.say(f"suspended: {name}  [dim]prep review --resume {name}[/]", whole=True)
    if overall.due:
        terminal.next_command("prep review", f"{overall.due} due")
    else:
        topic = f" --topic {overall.lever}" if overall.lever else ""
        terminal.next_command(f"prep quiz{topic}", "has the most to gain")


def bar(fraction: float, width: int = 10) -> str:
    """Draw a fraction as a bar."""
    full = round(min(max(fraction, 0.0), 1.0) * width)
    on, off = ("█", "░") if terminal.unicode_ok() else ("#", "-")
    return on * full + off * (width - full)


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


def _show_calibration(calibration: Calibration | None, own: OwnMarks | None) -> None:
    console = terminal.out()
    if calibration is None:
        console.print("calibration: you have not given a confidence yet\n")
        return
    means = f"mean confidence {calibration.said:.0%}, right {calibration.was:.0%}"
    console.print(f"[bold]calibration[/]  {means}  (n={calibration.n})   Brier {calibration.brier:.2f}")
    if calibration.bins:
        console.print("  sure  " + " ".join(f"{b.said:>5.0%}" for b in calibration.bins))
        console.print("  right " + " ".join(f"{b.was:>5.0%}" for b in calibration.bins))
        console.print("  n     " + " ".join(f"{b.n:>5}" for b in calibration.bins), style="dim")
    else:
        console.print(f"  [dim]each level of confidence is shown once it has {LEAST} answers[/]")
    for interval in calibration.intervals:
        words = f"  {interval.level:.0%} intervals contained {interval.hit_rate:.0%} of the answers  (n={interval.n})"
        if interval.widen is not None and interval.hit_rate < interval.level:
            words += f": make them {interval.widen:.1f} times as wide"
        console.print(words)
    if own is not None:
        how = "higher" if own.over > 0 else "lower"
        console.print(f"  you mark your own prose {abs(own.over):.2f} {how} than its probes  (n={own.n})")
    console.print()

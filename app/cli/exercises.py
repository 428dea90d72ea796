"""Shared steps of `prep lesson` and `prep lab`: check a learner's source, watch it, show hints and solutions.

`command` is the command that a screen points to next: "lesson" or "lab".
"""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from app.cli import terminal
from lessons.course import progress, workspace
from lessons.course.lesson_files import Exercise, solution
from quizzes.state import StateError

if TYPE_CHECKING:
    from lessons.course.checking import Report

POLL_S = 0.1


def check_source(exercise: Exercise, source: str, *, keep: bool = True) -> Report:
    """Run the checks of an exercise on a source. keep: record the result in the learner's state."""
    from lessons.course.checking import run_checks

    report = run_checks(exercise.id, source)
    if report.results and keep:
        good = sum(result.ok for result in report.results)
        record = partial(
            progress.record_check,
            exercise.id,
            source,
            ok=report.ok,
            num_passed=good,
            num_checks=len(report.results),
        )
        return replace(report, is_saved=is_recorded(record))
    return report


def is_recorded(record: Callable[[], None], what: str = "this result") -> bool:
    """Record a result in the learner's state. Print why if that is impossible, and return whether it is saved."""
    try:
        record()
    except StateError as error:
        terminal.tell_error(f"{error}; {what} is not saved", error.next_step)
        return False
    return True


def end(reports: list[Report]) -> None:
    """End a command with the exit code of its reports: failed checks, or a result that could not be saved."""
    if not all(report.ok for report in reports):
        raise typer.Exit(terminal.CHECKS_FAILED)
    if not all(report.is_saved for report in reports):
        raise typer.Exit(terminal.ENVIRONMENT)


@dataclass(frozen=True)
class Screen:
    """Texts that the screen of a watched file shows around the verdict."""

    title: str
    path: str
    keys: str


def watch_sources(
    targets: list[tuple[Exercise, Callable[[], str]]],
    command: str,
    *,
    seconds: float = 0.0,
    screen: Screen | None = None,
    after: Callable[[Report], None] | None = None,
) -> str:
    """Check each source again whenever it changes, until Ctrl-C, or for some seconds.

    screen: on a terminal, each round begins with a clear screen, and keys are read. after: called with each report.
    Returns the key that ended the watch, "q" or "n"; "" after `seconds`.
    """
    terminal.note("[dim]checks run when you save; Ctrl-C ends[/]")
    seen: dict[str, str] = {}
    began = time.monotonic()
    while not seconds or time.monotonic() - began < seconds:
        changed = []
        for exercise, read in targets:
            try:
                source = read()
            except workspace.WorkspaceError as error:
                source = f"{error}"
                if seen.get(exercise.id) != source:
                    terminal.say(f"[yellow]{terminal.literal(source)}[/]")
                    seen[exercise.id] = source
                continue
            if seen.get(exercise.id) != source:
                seen[exercise.id] = source
                changed.append((exercise, source))
        if changed and screen is not None:
            _begin(screen)
        for exercise, source in changed:
            report = check_source(exercise, source)
            print_report(report, command)
            if after is not None:
                after(report)
        if changed and screen is not None and sys.stdin.isatty():
            terminal.note(f"[dim]{screen.keys}[/]")
        key = _key(POLL_S) if screen is not None else _key(POLL_S, is_read=False)
        if key in ("q", "n"):
            return key
        if key == "r":
            seen.clear()
        elif key == "h" and targets:
            show_hint(targets[0][0], command)
    return ""


def _begin(screen: Screen) -> None:
    """Clear the screen, and say what is watched."""
    console = terminal.out()
    if terminal.is_live(console):
        console.clear()
    terminal.say(f"[bold]{terminal.literal(screen.title)}[/]")
    terminal.say(f"[dim]{terminal.literal(screen.path)}[/]", whole=True)


def _key(seconds: float, *, is_read: bool = True) -> str:
    """Wait, and return the letter of a line that is typed meanwhile; "" without one."""
    if not is_read or not sys.stdin.isatty():
        time.sleep(seconds)
        return ""
    if not select.select([sys.stdin], [], [], seconds)[0]:
        return ""
    line = sys.stdin.readline()
    return line.strip().lower()[:1] if line else "q"


def open_failure(report: Report) -> None:
    """Open the first failure that has a trace in the debugger. Raises Problem if none has."""
    from app.cli.app import app

    failure = next((result for result in report.results if result.trace), None)
    if failure is None:
        raise terminal.Problem(
            "no failure has a trace: a trace shows the engine's scheduler, and these checks fail before it runs",
            f"prep lab hint {report.exercise}",
            code=terminal.CHECKS_FAILED,
        )
    app(trace=Path(failure.trace), step=failure.step)


def show_hint(exercise: Exercise, command: str) -> None:
    """Show the hints so far and the next one, which is recorded."""
    known = progress.exercise_progress().get(exercise.id, progress.ExerciseProgress())
    number = min(known.hints + 1, len(exercise.hints))
    for index in range(number):
        cost = f"-{progress.HINT_COST:.0%}" if index == known.hints else "shown before"
        terminal.say(f"[bold]hint {index + 1}/{len(exercise.hints)}[/] [dim]({cost})[/]")
        terminal.say(f"  {terminal.literal(exercise.hints[index])}")
    if number > known.hints and not is_recorded(
        lambda: progress.record_hint(exercise.id, number), "this hint"
    ):
        raise typer.Exit(terminal.ENVIRONMENT)
    terminal.next_command(f"prep {command} check {exercise.id}")


def show_solution(exercise: Exercise, command: str, *, yes: bool) -> None:
    """Print the reference solution; before the exercise is solved, ask first and record it as seen."""
    is_saved = True
    if not is_passed(progress.exercise_progress(), exercise):
        if not yes and sys.stdin.isatty():
            try:
                reply = input(
                    f"{exercise.id} is not solved: the solution will count as seen. Show it? [y/N] "
                )
            except EOFError:  # Ctrl-D
                return print()
            if reply.strip().lower() not in ("y", "yes"):
                return
        is_saved = is_recorded(lambda: progress.record_solution(exercise.id))
    print(solution(exercise.id).rstrip())
    if not is_saved:
        raise typer.Exit(terminal.ENVIRONMENT)
    terminal.next_command(f"prep {command} check {exercise.id}")


def is_passed(done: dict[str, Any], exercise: Exercise) -> bool:
    return exercise.id in done and bool(done[exercise.id].passed)


def read_file(path: Path) -> str:
    """Return a learner's file as text. Raises Problem if it cannot be read or is not text."""
    try:
        return workspace.read_source(path)
    except workspace.WorkspaceError as error:
        raise terminal.Problem(str(error)) from None


def print_report(report: Report, command: str = "") -> None:
    """Print the verdict, each check, and the smallest example of each failure. command: also say which one shows a
    hint, if nothing was written yet."""
    from lessons.course.report_text import details, explanation, headline

    terminal.say(f"[bold]{terminal.literal(headline(report))}[/]")
    for result in report.results:
        terminal.say(f" {terminal.mark(result.ok)} {terminal.literal(result.says)}")
        for line in details(result):
            terminal.say(f"     [yellow]{terminal.literal(line)}[/]")
    if report.output:
        terminal.say("[dim]your code printed:[/]")
        terminal.say(terminal.literal(report.output.rstrip()))
    if explained := explanation(report):
        terminal.say(f"[dim]{terminal.literal(explained)}[/]")
    if report.is_stub and command:
        terminal.next_command(f"prep {command} hint {report.exercise}")

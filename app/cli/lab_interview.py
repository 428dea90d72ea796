"""`prep lab interview`: a lab as a coding round of an interview.

write in your editor --Enter--> checks ... --d, or time is up--> last check
    --> questions on cost --> three follow-ups, each compared with our text and marked by yourself --> marks
"""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING

import typer

from app.cli import terminal
from app.cli.exercises import check_source, is_recorded, print_report
from lessons.course import progress, workspace
from lessons.course.lesson_files import Lab

if TYPE_CHECKING:
    from lessons.course.checking import Report

NUM_FOLLOW_UPS = 3
RUBRIC = (
    "Correctness: share of the checks that pass. Cost: right answers about complexity. Discussion: your own marks. "
    "1 of 5 is nothing, 3 is half, 5 is all."
)
RULES = """\
Read the contract in the file aloud and say your plan before you write. Hints are
closed. Enter runs the checks; d ends the round, q leaves it without marks."""


def hold(lab: Lab, minutes: float) -> None:
    """Hold the round, and print and keep the marks. Raises Problem if the learner leaves it."""
    opened = workspace.open_lab(lab)
    hints_before = _num_hints(lab)
    terminal.say(f"[bold]{terminal.literal(lab.title)}[/], {minutes:g} minutes")
    terminal.say(terminal.literal(lab.goal))
    terminal.say(
        f"your file{'' if opened.created else ', as it is'}: {terminal.literal(opened.path)}", whole=True
    )
    terminal.say(RULES)
    report, used = _code(lab, 60 * minutes)
    marks = {"correctness": sum(result.ok for result in report.results) / max(1, len(report.results))}
    if lab.probes:
        marks["cost"] = _probes(lab)
    if lab.follow_ups:
        marks["discussion"] = _discuss(lab)
    is_saved = is_recorded(lambda: progress.record_interview(lab.number, marks, round(used / 60, 1)))
    rows = [(name, f"{1 + 4 * share:.0f} of 5", f"{share:.0%}") for name, share in marks.items()]
    terminal.show("Marks", terminal.table("", "mark", "right", left=("",), rows=rows))
    terminal.say(f"{used / 60:.0f} of {minutes:g} minutes used. {RUBRIC}")
    if (opened_hints := _num_hints(lab) - hints_before) > 0:
        terminal.say(f"hints opened meanwhile: {opened_hints}. An interviewer would note that.")
    if not is_saved:
        raise typer.Exit(terminal.ENVIRONMENT)
    terminal.next_command(f"prep lab {'race' if report.ok and lab.has_race else 'watch'} {lab.number}")


def _code(lab: Lab, seconds: float) -> tuple[Report, float]:
    """Check the file at each Enter, until the candidate is done or the time is up. Return the last report."""
    began = time.monotonic()
    bell = threading.Timer(seconds, lambda: terminal.note("\ntime is up: Enter runs the last check"))
    bell.daemon = True
    bell.start()
    try:
        while True:
            left = seconds - (time.monotonic() - began)
            reply = _ask(f"[{max(0, left) / 60:.0f} min left] Enter, d, q > ").lower()
            if reply == "q":
                raise terminal.Problem(
                    "left without marks; your file is kept", f"prep lab watch {lab.number}"
                )
            used = time.monotonic() - began
            is_last = reply == "d" or used >= seconds
            try:
                report = check_source(lab.exercise, workspace.lab_source(lab), keep=is_last)
            except workspace.WorkspaceError as error:
                terminal.say(terminal.literal(error))
                continue
            print_report(report)
            if is_last:
                return report, min(used, seconds)
    finally:
        bell.cancel()


def _probes(lab: Lab) -> float:
    """Ask about the cost of the code; return the share of right answers."""
    from lessons.course.say import is_right

    good = 0
    for number, probe in enumerate(lab.probes, 1):
        options = f" ({', '.join(probe.options)})" if probe.options else ""
        terminal.say(terminal.literal(f"{number}/{len(lab.probes)} {probe.q}{options}"))
        right = is_right(probe, _ask("your answer > "))
        good += right
        terminal.say(
            f" {terminal.mark(right)} {terminal.literal(f'it is {probe.answer} {probe.unit}'.rstrip())}"
        )
    return good / len(lab.probes)


def _discuss(lab: Lab) -> float:
    """Ask follow-ups, which the candidate answers aloud, compares with our text and marks. Return the share."""
    chosen = random.sample(lab.follow_ups, min(NUM_FOLLOW_UPS, len(lab.follow_ups)))
    total = 0
    for question, more in chosen:
        is_whole = question.endswith("?") or question.startswith("Explain")
        terminal.say(
            f"[bold]{terminal.literal(question)}[/] {'' if is_whole else terminal.literal(more)}".rstrip()
        )
        _ask("say it aloud, then Enter > ")
        if is_whole and more:
            terminal.say(f"compare: {terminal.literal(more)}")
        mark = _ask("0 nothing of it, 1 in part, 2 all of it > ")
        while mark not in ("0", "1", "2"):
            mark = _ask("0, 1 or 2 > ")
        total += int(mark)
    return total / (2 * len(chosen))


def _num_hints(lab: Lab) -> int:
    return progress.exercise_progress().get(lab.number, progress.ExerciseProgress()).hints


def _ask(prompt: str) -> str:
    """Read a line. Raises Problem at the end of input, where no candidate answers."""
    try:
        return input(prompt).strip()
    except EOFError:
        raise terminal.Problem("the input ended; no marks were kept", "hold it in a terminal") from None

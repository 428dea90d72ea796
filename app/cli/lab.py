"""`prep lab`: write a part of the engine in your own editor, and let the engine judge it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli import terminal
from app.cli.exercises import (
    Screen,
    check_source,
    end,
    is_passed,
    open_failure,
    print_report,
    read_file,
    show_hint,
    show_solution,
    watch_sources,
)
from app.cli.lab_interview import hold
from app.cli.lab_race import race, submit_trace
from app.cli.options import JsonOption, argument, option
from lessons.course import progress, workspace
from lessons.course.lesson_files import TRACKS, Lab, find_lab, labs, solution

if TYPE_CHECKING:
    from lessons.course.checking import Report

LabArgument = Annotated[str, argument("Name of a lab: block-manager.", metavar="LAB")]
NextArgument = Annotated[str | None, argument("Name of a lab; the next one without.", metavar="[LAB]")]


def overview(
    ctx: typer.Context,
    interview: Annotated[
        float | None,
        option("Hold the next lab as a coding round of so many minutes.", min=1, max=240, metavar="MINUTES"),
    ] = None,
) -> None:
    """List the labs by track, and what is next."""
    if ctx.invoked_subcommand is None:
        list_() if interview is None else hold(_current(), interview)
    elif interview is not None:
        raise terminal.Problem(
            "--interview stands alone: it takes the next lab",
            f"prep lab interview LAB --minutes {interview:g}   takes the one that you name",
        )


def list_(json: JsonOption = False) -> None:
    """List the labs by track: what each builds, minutes, and which are solved.

    Example: prep lab list
    """
    done = progress.exercise_progress()
    if json:
        keys = {"track", "title", "goal", "topics", "unlocks"}
        terminal.print_json(
            [
                {
                    "name": lab.number,
                    **lab.model_dump(include=keys),
                    "minutes": lab.exercise.minutes,
                    "solved": is_passed(done, lab.exercise),
                }
                for lab in labs()
            ]
        )
        return
    for track in TRACKS:
        if not any(lab.track == track for lab in labs()):
            continue
        table = terminal.table("", "lab", "builds", "min", left=("", "lab", "builds"))
        for lab in labs():
            if lab.track == track:
                mark = terminal.mark(True) if is_passed(done, lab.exercise) else " "
                table.add_row(mark, lab.number, terminal.literal(lab.title), str(lab.exercise.minutes))
        terminal.show(f"Track {track}", table)
    lab = _current()
    is_begun = workspace.lab_path(lab).exists()
    terminal.next_command(f"prep lab {'watch' if is_begun else 'new'} {lab.number}")


def new(lab: NextArgument = None) -> None:
    """Make your file of a lab: the contract in its docstring, nothing written. An existing file is kept.

    Example: prep lab new block-manager
    """
    chosen = _chosen(lab)
    opened = workspace.open_lab(chosen)
    terminal.say(f"[bold]{terminal.literal(chosen.title)}[/], about {chosen.exercise.minutes} minutes")
    terminal.say(terminal.literal(chosen.goal))
    words = "your file" if opened.created else "your file, kept as it is"
    terminal.say(f"{words}: {terminal.literal(opened.path)}", whole=True)
    if change := workspace.contract_change(chosen):
        terminal.say("[yellow]the contract has changed since your file was made:[/]")
        print(change.rstrip())
        workspace.accept_contract(chosen)
    terminal.next_command(f"prep lab watch {chosen.number}")


def check(
    lab: NextArgument = None,
    file: Annotated[
        Path | None, option("Check this file instead of yours in the workspace.", "--file", metavar="FILE")
    ] = None,
    reference: Annotated[
        bool, option("Check the reference solution instead: for authors.", "--solution")
    ] = False,
    open_: Annotated[
        bool, option("Open the first failure that has a trace in the debugger.", "--open")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Check your file: named checks, each failure with its smallest example.

    Your code runs in a process of its own, within limits of time and memory.

    \b
    Examples:
      prep lab check block-manager
      prep lab check block-manager --file attempt.py
      prep lab check scheduler-fcfs --open
    """
    chosen = _chosen(lab)
    if reference:
        source = solution(chosen.number)
    else:
        source = workspace.lab_source(chosen) if file is None else read_file(file)
    report = check_source(chosen.exercise, source, keep=not reference)
    if json:
        terminal.print_json(report.to_json())
    else:
        print_report(report, "lab")
        if file is None and not reference:
            _say_contract(chosen)
        if report.ok and report.is_saved:
            _say_what_follows(chosen)
    if open_ and not report.ok:
        open_failure(report)
    end([report])


def watch(lab: NextArgument = None, seconds: Annotated[float, option(hidden=True)] = 0.0) -> None:
    """Check again whenever you save your file: one screen with the verdict and the next step. Ctrl-C ends.

    In a terminal, a letter and Enter: h shows a hint, r checks again, n goes on to the next lab, q ends.

    Example: prep lab watch block-manager
    """
    chosen: Lab | None = _chosen(lab)
    while chosen is not None:
        path = workspace.open_lab(chosen).path
        screen = Screen(
            f"{chosen.number}: {chosen.title}", str(path), "h hint · r check again · n next lab · q end"
        )
        key = watch_sources(
            [(chosen.exercise, partial(workspace.lab_source, chosen))],
            "lab",
            seconds=seconds,
            screen=screen,
            after=partial(_say_next_step, chosen),
        )
        if key != "n":
            return
        chosen = _after(chosen)
    terminal.say("all labs are solved")


def hint(lab: LabArgument) -> None:
    """Show the next hint of a lab. Each of the three costs a fifth of its points.

    Example: prep lab hint block-manager
    """
    show_hint(find_lab(lab).exercise, "lab")


def solution_(
    lab: LabArgument, yes: Annotated[bool, option("Show it without asking.", "--yes")] = False
) -> None:
    """Show the reference solution. Before you have solved the lab, it counts as seen and comes up for review.

    Example: prep lab solution block-manager --yes
    """
    show_solution(find_lab(lab).exercise, "lab", yes=yes)


solution_.__name__ = "solution"


def follow_ups(lab: LabArgument) -> None:
    """Read what an interviewer asks once the code works.

    Example: prep lab follow-ups block-manager
    """
    chosen = find_lab(lab)
    terminal.markdown(chosen.follow_up_page)
    if chosen.unlocks:
        terminal.next_command(f"prep quiz --question {chosen.unlocks[0]}")


follow_ups.__name__ = "follow-ups"


def reset(lab: LabArgument) -> None:
    """Start a lab's file afresh. Your old file is kept beside it.

    Example: prep lab reset block-manager
    """
    chosen = find_lab(lab)
    backup = workspace.reset_lab(chosen)
    if backup is not None:
        terminal.say(f"your file is now {terminal.literal(backup)}", whole=True)
    terminal.say(f"a new one is at {terminal.literal(workspace.lab_path(chosen))}", whole=True)


def interview(
    lab: NextArgument = None,
    minutes: Annotated[float, option("Length of the coding round.", min=1, max=240)] = 45.0,
) -> None:
    """Hold a lab as a coding round: a timer, no hints; then questions on its cost, follow-ups, and marks.

    \b
    Examples:
      prep lab interview router-affinity
      prep lab interview --minutes 30
    """
    hold(_chosen(lab), minutes)


def _say_what_follows(lab: Lab) -> None:
    terminal.say(f"questions that you can answer now: {', '.join(lab.unlocks)}")
    if lab.has_race:
        terminal.say(f"what an interviewer asks next: prep lab follow-ups {lab.number}")
        terminal.next_command(f"prep lab race {lab.number}")
    else:
        terminal.next_command(f"prep lab follow-ups {lab.number}")


def _say_next_step(lab: Lab, report: Report) -> None:
    _say_contract(lab)
    if report.ok:
        _say_what_follows(lab)


def _say_contract(lab: Lab) -> None:
    """Say that the learner's file was made for an older contract, if so."""
    if workspace.contract_change(lab):
        terminal.say(
            f"[yellow]the contract of {lab.number} has changed since your file was made[/]; your file is kept. "
            f"prep lab new {lab.number}   shows the change"
        )


def _after(lab: Lab) -> Lab | None:
    """Return the first other lab that is not solved."""
    done = progress.exercise_progress()
    return next((other for other in labs() if other != lab and not is_passed(done, other.exercise)), None)


def _chosen(name: str | None) -> Lab:
    return _current() if name is None else find_lab(name)


def _current() -> Lab:
    """Return the first lab that is not solved; the last one if all are."""
    done = progress.exercise_progress()
    return next((lab for lab in labs() if not is_passed(done, lab.exercise)), labs()[-1])


lab = terminal.command_app(
    list_,
    new,
    check,
    watch,
    hint,
    solution_,
    follow_ups,
    race,
    submit_trace,
    interview,
    reset,
    help="Write a part of the engine in your own editor. Without a subcommand: show what is next.",
    shows=("new", lambda word: find_lab(word).number),
)
lab.info.no_args_is_help = False
lab.callback(invoke_without_command=True)(overview)

"""`prep lab`: write a part of the engine in your own editor, let the engine judge it, then race it."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from app.cli import terminal
from app.cli.exercises import (
    check_source,
    is_passed,
    print_report,
    read_file,
    show_hint,
    show_solution,
    watch_sources,
)
from app.cli.lab_interview import hold
from app.cli.options import JsonOption, argument, option
from lessons.course import progress, workspace
from lessons.course.lesson_files import TRACKS, Lab, find_lab, labs, solution

LabArgument = Annotated[str, argument("Name of a lab: block-manager.", metavar="LAB")]
NextArgument = Annotated[str | None, argument("Name of a lab; the next one without.", metavar="[LAB]")]


def overview(ctx: typer.Context) -> None:
    """List the labs by track, and what is next."""
    if ctx.invoked_subcommand is None:
        list_()


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
    found = _chosen(lab)
    opened = workspace.open_lab(found)
    terminal.say(f"[bold]{terminal.literal(found.title)}[/], about {found.exercise.minutes} minutes")
    terminal.say(terminal.literal(found.goal))
    words = "your file" if opened.created else "your file, kept as it is"
    terminal.say(f"{words}: {terminal.literal(opened.path)}", whole=True)
    terminal.next_command(f"prep lab watch {found.number}")


def check(
    lab: NextArgument = None,
    file: Annotated[
        Path | None, option("Check this file instead of yours in the workspace.", "--file", metavar="FILE")
    ] = None,
    reference: Annotated[
        bool, option("Check the reference solution instead: for authors.", "--solution")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Check your file: named checks, each failure with its smallest example.

    Your code runs in a process of its own, within limits of time and memory.

    \b
    Examples:
      prep lab check block-manager
      prep lab check block-manager --file attempt.py
    """
    found = _chosen(lab)
    if reference:
        source = solution(found.number)
    else:
        source = workspace.lab_source(found) if file is None else read_file(file)
    report = check_source(found.exercise, source, keep=not reference)
    if json:
        terminal.print_json(report.to_json())
    else:
        print_report(report, "lab")
        if report.ok:
            _say_what_follows(found)
    if not report.ok:
        raise typer.Exit(terminal.CHECKS_FAILED)


def watch(lab: NextArgument = None, seconds: Annotated[float, option(hidden=True)] = 0.0) -> None:
    """Check again whenever you save your file, until Ctrl-C.

    Example: prep lab watch block-manager
    """
    found = _chosen(lab)
    terminal.note(f"[dim]{terminal.literal(workspace.open_lab(found).path)}[/]")
    watch_sources([(found.exercise, partial(workspace.lab_source, found))], "lab", seconds=seconds)


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
    found = find_lab(lab)
    print((found.folder / "follow_ups.md").read_text(encoding="utf-8").rstrip())
    terminal.next_command(f"prep quiz --question {found.unlocks[0]}")


follow_ups.__name__ = "follow-ups"


def race(
    lab: NextArgument = None,
    seed: Annotated[int, option("Draws the last workload.", min=0)] = 0,
    best: Annotated[bool, option("Run nothing: list your races so far.", "--best")] = False,
    json: JsonOption = False,
) -> None:
    """Race your part against ours; the ratio comes from one run. Your file must pass its checks.

    \b
    Examples:
      prep lab race router-affinity
      prep lab race router-affinity --best
    """
    from common.sandbox import GuestError, GuestStopped
    from lessons.course.checking import Failed

    found = _chosen(lab)
    if not found.has_race:
        races = ", ".join(each.number for each in labs() if each.has_race)
        raise terminal.Problem(f"{found.number} has no race", f"labs with one: {races}")
    if best:
        return _show_races(found, json)
    source = workspace.lab_source(found)
    report = check_source(found.exercise, source, keep=False)
    if not report.ok:
        raise terminal.Problem(
            f"your {found.number} does not pass its checks yet",
            f"prep lab check {found.number}",
            code=terminal.CHECKS_FAILED,
        )
    try:
        with terminal.status("racing, up to half a minute"):
            result = import_module(f"lessons.{found.name}.race").race(source, solution(found.number), seed)
    except (GuestError, GuestStopped) as error:
        raise terminal.Problem(f"your code: {error}", f"prep lab check {found.number}") from None
    except Failed as failed:
        raise terminal.Problem(f"your code: {failed.why}", f"prep lab check {found.number}") from None
    progress.record_race(found.number, seed, result.ratio, source)
    if json:
        rows = [dict(zip(result.columns, row, strict=True)) for row in result.rows]
        facts = {"lab": found.number, "seed": seed, "ratio": result.ratio, "differs": result.differs}
        return terminal.print_json({**facts, "rows": rows})
    left = result.columns[:2]
    terminal.show(f"Race: {found.number}", terminal.table(*result.columns, left=left, rows=result.rows))
    terminal.say(f"{result.ratio:.2f}: {terminal.literal(result.says)}")
    if result.differs:
        terminal.say(f"first decision that differs: {terminal.literal(result.differs)}")
    terminal.next_command(f"prep lab follow-ups {found.number}")


def _show_races(lab: Lab, json: bool) -> None:
    """Print the learner's races of a lab, the best first; less is better in every race."""
    races = sorted(progress.events(lab.number, "race"), key=lambda each: (each.answer, each.at))
    facts = [
        {
            "ratio": each.answer,
            "seed": each.detail["seed"],
            "file": each.detail["digest"],
            "at": each.at.isoformat(),
        }
        for each in races
    ]
    if json:
        return terminal.print_json({"lab": lab.number, "races": facts})
    if not races:
        raise terminal.Problem(f"no race of {lab.number} so far", f"prep lab race {lab.number}")
    rows = [
        (f"{each.answer:.2f}", each.detail["seed"], each.detail["digest"][:8], f"{each.at:%Y-%m-%d %H:%M}")
        for each in races
    ]
    terminal.show(
        f"Your races: {lab.number}", terminal.table("ratio", "seed", "file", "when (UTC)", rows=rows)
    )
    terminal.next_command(f"prep lab race {lab.number} --seed {races[0].detail['seed'] + 1}")


def reset(lab: LabArgument) -> None:
    """Start a lab's file afresh. Your old file is kept beside it.

    Example: prep lab reset block-manager
    """
    found = find_lab(lab)
    backup = workspace.reset_lab(found)
    if backup is not None:
        terminal.say(f"your file is now {terminal.literal(backup)}", whole=True)
    terminal.say(f"a new one is at {terminal.literal(workspace.lab_path(found))}", whole=True)


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


def _chosen(name: str | None) -> Lab:
    return _current() if name is None else find_lab(name)


def _current() -> Lab:
    """Return the first lab that is not solved; the last one if all are."""
    done = progress.exercise_progress()
    return next((lab for lab in labs() if not is_passed(done, lab.exercise)), labs()[-1])


def _say_what_follows(lab: Lab) -> None:
    terminal.say(f"questions that you can answer now: {', '.join(lab.unlocks)}")
    if lab.has_race:
        terminal.say(f"what an interviewer asks next: prep lab follow-ups {lab.number}")
        terminal.next_command(f"prep lab race {lab.number}")
    else:
        terminal.next_command(f"prep lab follow-ups {lab.number}")


lab = terminal.command_app(
    list_,
    new,
    check,
    watch,
    hint,
    solution_,
    follow_ups,
    race,
    interview,
    reset,
    help="Write a part of the engine in your own editor. Without a subcommand: show what is next.",
)
lab.info.no_args_is_help = False
lab.callback(invoke_without_command=True)(overview)

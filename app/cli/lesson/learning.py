"""The learner's commands: what is next, open, check, watch, hint, solution, reset, diff."""

from __future__ import annotations

import difflib
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli import terminal
from app.cli.exercises import (
    check_source,
    end,
    is_passed,
    print_report,
    read_file,
    show_hint,
    show_solution,
    watch_sources,
)
from app.cli.lesson import jupyter
from app.cli.options import JsonOption, argument, option
from lessons.course import progress, workspace
from lessons.course.lesson_files import (
    Exercise,
    Lesson,
    find_lesson,
    find_lesson_exercise,
    lessons,
    solution,
    stub,
)

LessonArgument = Annotated[str | None, argument("Number of a lesson, such as 07.", metavar="[LESSON]")]
TargetArgument = Annotated[str | None, argument("A lesson or an exercise: 07, 07.2.", metavar="[TARGET]")]
ExerciseArgument = Annotated[str, argument("An exercise: 07.2.", metavar="EXERCISE")]
SourceOption = Annotated[
    Path | None, option("Check this file instead of the notebook's cell.", "--file", metavar="FILE")
]


def next_lesson(ctx: typer.Context) -> None:
    """Show what is next; Enter opens it in JupyterLab."""
    if ctx.invoked_subcommand is not None:
        return
    done = progress.exercise_progress()
    lesson = _current(done)
    solved = sum(is_passed(done, exercise) for lesson in lessons() for exercise in lesson.exercises.values())
    total = sum(len(entry.exercises) for entry in lessons())
    terminal.say(f"{solved} of {total} exercises solved")
    terminal.say(f"[bold]next: lesson {lesson.number}, {terminal.literal(lesson.title)}[/]")
    terminal.say(f"{terminal.literal(lesson.goal)} About {lesson.minutes} minutes.")
    for exercise in lesson.exercises.values():
        mark = terminal.mark(True) if is_passed(done, exercise) else " "
        terminal.say(f" {mark} {exercise.id}  {terminal.literal(exercise.title)}")
    if not sys.stdin.isatty():
        terminal.next_command(f"prep lesson open {lesson.number}")
        return
    try:
        reply = input("Enter opens it in JupyterLab; q quits > ")
    except EOFError:
        return
    if not reply.strip():
        open_(lesson.number)


def list_(json: JsonOption = False) -> None:
    """List the lessons: what each builds, minutes, and which exercises are solved.

    Example: prep lesson list
    """
    done = progress.exercise_progress()
    if json:
        rows = [
            {
                **lesson.model_dump(include={"number", "title", "builds", "minutes", "topics", "unlocks"}),
                "exercises": {name: is_passed(done, facts) for name, facts in lesson.exercises.items()},
            }
            for lesson in lessons()
        ]
        terminal.print_json(rows)
        return
    table = terminal.table("", "lesson", "builds", "min", "solved", left=("lesson", "builds"))
    for lesson in lessons():
        good = sum(is_passed(done, exercise) for exercise in lesson.exercises.values())
        table.add_row(
            lesson.number,
            terminal.literal(lesson.title),
            terminal.literal(lesson.builds),
            str(lesson.minutes),
            f"{good}/{len(lesson.exercises)}",
        )
    terminal.show("Lessons", table)
    terminal.next_command(f"prep lesson open {_current(done).number}")


def open_(
    lesson: LessonArgument = None,
    port: Annotated[int, option("Port on 127.0.0.1; 0: 8888 or the next free one.", min=0, max=65535)] = 0,
    browser: Annotated[bool, option("Open the browser.")] = True,
    path_only: Annotated[
        bool, option("Only make your copy and print its path, for VS Code.", "--path")
    ] = False,
) -> None:
    """Open a lesson in JupyterLab. You work on a copy of your own; an update keeps your code.

    \b
    Examples:
      prep lesson open 07
      prep lesson open 07 --path  print the path, to open it in another editor
    """
    chosen = find_lesson(lesson) if lesson else _current(progress.exercise_progress())
    if not path_only:
        jupyter.check_installed()
    opened = workspace.open_copy(chosen)
    if opened.updated:
        terminal.note(
            f"[dim]updated to the current lesson; your cells are kept, the old file is {opened.backup}[/]"
        )
    if path_only:
        print(opened.path)
        return
    jupyter.serve(opened.path, port=port, browser=browser)


def check(
    target: TargetArgument = None,
    file: SourceOption = None,
    reference: Annotated[
        bool, option("Check the reference solution instead: for authors.", "--solution")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Check your exercises: named checks, each failure with its smallest example.

    Your code is read from your saved notebook and runs in a process of its own, within limits.

    \b
    Examples:
      prep lesson check 07
      prep lesson check 07.2
      prep lesson check 07.2 --file attempt.py
    """
    reports = []
    for _, exercise in _targets(target):
        source = solution(exercise.id) if reference else _source(exercise.id, file)
        reports.append(check_source(exercise, source, keep=not reference))
        if not json:
            print_report(reports[-1], "lesson")
    if json:
        terminal.print_json([report.to_json() for report in reports])
    end(reports)


def watch(target: TargetArgument = None, seconds: Annotated[float, option(hidden=True)] = 0.0) -> None:
    """Check again whenever you save the notebook, until Ctrl-C.

    Example: prep lesson watch 07.2
    """
    targets = _targets(target)
    for lesson, _ in targets:
        workspace.open_copy(lesson)

    def read(lesson: Lesson, exercise: Exercise) -> str:
        return workspace.learner_source(lesson, exercise.id) or ""

    watch_sources([(pair[1], partial(read, *pair)) for pair in targets], "lesson", seconds=seconds)


def hint(exercise: ExerciseArgument) -> None:
    """Show the next hint of an exercise. Each of the three costs a fifth of its points.

    Example: prep lesson hint 07.2
    """
    show_hint(find_lesson_exercise(exercise)[1], "lesson")


def solution_(
    exercise: ExerciseArgument,
    yes: Annotated[bool, option("Show it without asking.", "--yes")] = False,
) -> None:
    """Show the reference solution. Before you have solved the exercise, it counts as seen and comes up for review.

    Example: prep lesson solution 07.2 --yes
    """
    show_solution(find_lesson_exercise(exercise)[1], "lesson", yes=yes)


solution_.__name__ = "solution"


def reset(lesson: Annotated[str, argument("A lesson: 07.", metavar="LESSON")]) -> None:
    """Start a lesson's notebook afresh. Your old notebook is kept beside it.

    Example: prep lesson reset 07
    """
    chosen = find_lesson(lesson)
    if "." in lesson:
        raise terminal.Problem(
            f"{lesson!r} is an exercise; reset starts all of lesson {chosen.number} afresh",
            f"prep lesson reset {chosen.number}",
        )
    backup = workspace.reset(chosen)
    if backup is not None:
        terminal.say(f"your notebook is now {terminal.literal(backup)}", whole=True)
    terminal.say(f"a new copy is at {terminal.literal(workspace.notebook_path(chosen))}", whole=True)


def diff(target: TargetArgument = None) -> None:
    """Show how your code differs from the exercise as it was given.

    Example: prep lesson diff 07
    """
    changed = False
    for lesson, exercise in _targets(target):
        given = stub(lesson, exercise.id).splitlines()
        mine = (workspace.learner_source(lesson, exercise.id) or "\n".join(given)).splitlines()
        for line in difflib.unified_diff(
            given, mine, f"{exercise.id} given", f"{exercise.id} yours", lineterm=""
        ):
            changed = True
            print(line)
    if not changed:
        terminal.say("your exercises are as they were given")


def _targets(target: str | None) -> list[tuple[Lesson, Exercise]]:
    if target is not None and "." in target:
        return [find_lesson_exercise(target)]
    lesson = find_lesson(target) if target else _current(progress.exercise_progress())
    return [(lesson, exercise) for exercise in lesson.exercises.values()]


def _current(done: dict[str, Any]) -> Lesson:
    """Return the first lesson with an unsolved exercise; the last one if all are solved."""
    if not lessons():
        raise terminal.Problem("this checkout has no lessons", code=terminal.ENVIRONMENT)
    for lesson in lessons():
        if not all(is_passed(done, exercise) for exercise in lesson.exercises.values()):
            return lesson
    return lessons()[-1]


def _source(exercise: str, file: Path | None) -> str:
    if file is not None:
        return read_file(file)
    lesson, _ = find_lesson_exercise(exercise)
    source = workspace.learner_source(lesson, exercise)
    if source is None and workspace.notebook_path(lesson).exists():
        raise terminal.Problem(
            f"your notebook has no cell for exercise {exercise}",
            f"prep lesson open {lesson.number} --path   (adds missing cells, keeps yours)",
        )
    return stub(lesson, exercise) if source is None else source

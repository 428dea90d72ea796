"""Commands for authors and CI: run a notebook headless, build it, test its checks with wrong solutions."""

from __future__ import annotations

import json as json_module
from typing import Annotated

import typer

from app.cli import terminal
from app.cli.lesson.jupyter import check_installed
from app.cli.options import argument, option
from lessons.course.lesson_files import Lesson, find_lesson, lessons
from prep_common.paths import write_atomically

LessonsArgument = Annotated[
    list[str] | None, argument("Numbers of lessons; all without.", metavar="[LESSON]...")
]


def run(
    lesson: LessonsArgument = None,
    quick: Annotated[bool, option("Small sizes: under 45 s a lesson.", "--quick")] = False,
    solved: Annotated[bool, option("With the reference solutions in place.", "--solved")] = False,
    mine: Annotated[bool, option("Your copy instead of the lesson as it ships.", "--mine")] = False,
) -> None:
    """Execute notebooks without a browser and print what failed. About 20 s each with --quick, a minute without.

    Example: prep lesson run 07 --quick
    """
    from lessons.course.notebook_build import build as make
    from lessons.course.notebook_build import execute
    from lessons.course.workspace import notebook_path

    check_installed()
    failed = False
    for chosen in _chosen(lesson):
        if mine:
            path = notebook_path(chosen)
            if not path.exists():
                raise terminal.Problem(
                    f"you have not opened lesson {chosen.number}", f"prep lesson open {chosen.number}"
                )
            notebook = json_module.loads(path.read_text(encoding="utf-8"))
        else:
            notebook = make(chosen, solved=solved)
        with terminal.status(f"lesson {chosen.number}") as tell:
            result = execute(
                notebook, quick=quick, on_cell=lambda index, count: tell(f"cell {index + 1} of {count}")
            )
        failed |= bool(result.errors or result.warnings)
        sign = terminal.mark(not (result.errors or result.warnings))
        terminal.say(f"{sign} {chosen.number} {terminal.literal(chosen.title)}: {result.seconds:.1f} s")
        for text in (*result.errors, *result.warnings):
            terminal.say(f"    {terminal.literal(text)}")
    if failed:
        raise typer.Exit(terminal.CHECKS_FAILED)


def build(
    lesson: LessonsArgument = None,
    check: Annotated[bool, option("Only say whether the notebooks fit their sources.", "--check")] = False,
) -> None:
    """Build notebooks from their sources, execute them, and write them with outputs. About a minute each.

    If only the prose of a lesson has changed, its outputs are kept.

    \b
    Examples:
      prep lesson build 07
      prep lesson build --check
    """
    from lessons.course.notebook_build import build as make
    from lessons.course.notebook_build import execute, is_current, to_text, with_kept_outputs

    old = [chosen for chosen in _chosen(lesson) if not is_current(chosen)] if check else []
    if check:
        for chosen in old:
            terminal.say(f"{terminal.mark(False)} {chosen.name}/lesson.ipynb does not fit lesson.py")
        if old:
            terminal.next_command(f"prep lesson build {' '.join(chosen.number for chosen in old)}")
            raise typer.Exit(terminal.CHECKS_FAILED)
        terminal.say("all notebooks fit their sources")
        return
    check_installed()
    for chosen in _chosen(lesson):
        if not is_current(chosen) and (kept := with_kept_outputs(chosen)) is not None:
            write_atomically(chosen.notebook, to_text(kept))
            terminal.say(f"{terminal.mark(True)} lesson {chosen.number}: prose changed, outputs kept")
            continue
        with terminal.status(f"lesson {chosen.number}") as tell:
            result = execute(make(chosen), on_cell=lambda index, count: tell(f"cell {index + 1} of {count}"))
        if result.errors:
            raise terminal.Problem(
                f"lesson {chosen.number} fails: {result.errors[0]}",
                f"prep lesson run {chosen.number}",
                code=terminal.CHECKS_FAILED,
            )
        text = to_text(result.notebook)
        write_atomically(chosen.notebook, text)
        terminal.say(
            f"{terminal.mark(True)} {chosen.notebook.name} of lesson {chosen.number}: {len(text) // 1024} KiB, "
            f"{result.seconds:.0f} s"
        )


def mutants(lesson: LessonsArgument = None) -> None:
    """Check that the check named for each plausible wrong solution fails, and that the solutions pass.

    Example: prep lesson mutants 07
    """
    from lessons.course.checking import run_checks
    from lessons.course.lesson_files import solution
    from lessons.course.mutants import mutants as wrong_solutions

    failed = False
    for chosen in _chosen(lesson):
        for exercise in chosen.exercises:
            report = run_checks(exercise, solution(exercise))
            failed |= not report.ok
            terminal.say(f"{terminal.mark(report.ok)} {exercise} solution")
            for result in report.results:
                if not result.ok:
                    terminal.say(f"    {result.name}: {terminal.literal(result.why)}")
            if report.problem:
                terminal.say(f"    {terminal.literal(report.problem)}")
        for mutant in wrong_solutions(chosen):
            report = run_checks(mutant.exercise, mutant.source, only=mutant.check)
            caught = bool(report.results) and not report.results[0].ok
            failed |= not caught
            terminal.say(
                f"{terminal.mark(caught)} {mutant.exercise} {mutant.check}: {terminal.literal(mutant.why)}"
            )
    if failed:
        raise typer.Exit(terminal.CHECKS_FAILED)


def _chosen(numbers: list[str] | None) -> tuple[Lesson, ...]:
    return tuple(find_lesson(number) for number in numbers) if numbers else lessons()

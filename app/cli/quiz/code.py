"""Programs to repair: the learner edits a file and runs its checks as often as needed."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.padding import Padding

from app.cli import terminal
from app.cli.quiz import showing
from app.cli.quiz.dialogue import Quit, Skip
from prep_common.sandbox import Limits
from prep_common.text_file import UnreadableFile, read_text
from quizzes.answering import keep
from quizzes.autopsies.programs import LIMITS, CheckResult, read, run_checks
from quizzes.grading import Graded, Part

if TYPE_CHECKING:
    from app.cli.quiz.sitting import Sitting
    from quizzes.answering import Record
    from quizzes.instance import Instance
    from quizzes.question import Code

MENU = "Enter check · c show the program · h hint · r start over · g give up · ? help · q quit"
HELP = (
    "Edit your file in another window, then press Enter here: all checks run. Type a path to check another file. "
    "c prints the given program, h shows a hint, r replaces your file by the given program (yours is kept beside it), "
    "g ends the question with the checks that pass now, s skips it, q quits."
)


def workspace_file(folder: str) -> Path:
    """Return the path of the learner's copy of a program, the file of its bug hunt. It is never overwritten."""
    from lessons.course.lesson_files import HUNTS, labs
    from lessons.course.workspace import lab_path

    return next(lab_path(lab) for lab in labs() if lab.track == HUNTS and lab.folder.name == folder)


def ask_code(sitting: Sitting, instance: Instance, record: Record) -> None:
    """Run checks until all pass or the learner gives up. Raises Skip, Quit."""
    code = instance.question.code
    assert code is not None
    path = workspace_file(code.folder)
    if not path.exists():
        _write_given(path, code.folder)
    began = time.monotonic()
    sitting.say(f" your file: [bold]{escape(str(path))}[/]\n (or type the path of another file)\n")
    report: list[CheckResult] | None = None
    while True:
        line = sitting.dialogue.read(f" {MENU} > ")
        key = line.lower()
        if key == "q":
            raise Quit
        if key == "s":
            raise Skip
        if key in ("?", ":?"):
            sitting.say(showing.note(HELP))
            continue
        if key == "c":
            showing.console().print(Padding(read(code.folder), (0, 0, 0, 3)), markup=False)
        elif key == "h":
            record.hints += sitting.hint(instance, record.hints)
        elif key == "r":
            _start_over(sitting, path, code.folder)
        elif key == "g":
            break
        else:
            report = _check(sitting, code, Path(line).expanduser() if line else path) or report
            if report is not None and all(result.ok for result in report):
                break
    record.seconds = time.monotonic() - began
    report = report or run_checks(code.folder, read(code.folder), _limits(code))
    record.replies = {"passed": f"{sum(result.ok for result in report)} of {len(report)}"}
    keep(sitting.state, sitting.session, instance, record, _graded(report), None)
    if not sitting.exam:
        sitting.say("")
        if not sitting.quiet:
            showing.explanation(instance, None, {})
        sitting.say(f" [dim]a repaired program: quizzes/autopsies/{code.folder}/solution.py[/]")


def _write_given(path: Path, folder: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(read(folder), encoding="utf-8")


def _start_over(sitting: Sitting, path: Path, folder: str) -> None:
    """Restore the given program and keep the learner's file beside it."""
    kept = path.with_suffix(f".{time.strftime('%Y%m%d-%H%M%S')}.py")
    if path.exists():
        path.rename(kept)
        sitting.say(f" [dim]your file is now {escape(str(kept))}[/]")
    _write_given(path, folder)


def _limits(code: Code) -> Limits:
    return replace(LIMITS, seconds=code.seconds, megabytes=code.megabytes)


def _check(sitting: Sitting, code: Code, path: Path) -> list[CheckResult] | None:
    """Run the checks and print the results. Return None if nothing could be run."""
    try:
        source = read_text(path)
    except UnreadableFile as error:
        sitting.say(f" [yellow]{escape(str(error))}[/]")
        return None
    if not source.strip():
        sitting.say(f" [yellow]{escape(str(path))} is empty; r restores the given program[/]")
        return None
    try:
        report = run_checks(code.folder, source, _limits(code))
    except KeyboardInterrupt:
        sitting.say(" [yellow]the checks were interrupted[/]")
        return None
    if not sitting.quiet:
        print_results(report)
    return report


def print_results(report: list[CheckResult]) -> None:
    """Print each check with its reason if it failed, and how many pass."""
    where = showing.console()
    for result in report:
        where.print(f" {terminal.mark(result.ok)} {showing.inline(result.says)}")
        if result.why:
            where.print(f"     [yellow]{escape(result.why)}[/]")
    where.print(f" [bold]{sum(result.ok for result in report)}/{len(report)} checks[/]")


def _graded(report: list[CheckResult]) -> Graded:
    share = 1 / len(report)
    parts = tuple(
        Part(
            id=result.name,
            given=result.ok,
            expected=True,
            ok=result.ok,
            points=result.ok * share,
            max_points=share,
        )
        for result in report
    )
    return Graded(parts, "tests")

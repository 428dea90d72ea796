"""Programs to repair: the learner edits a file and runs its checks as often as needed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.padding import Padding

from app.cli import terminal
from app.cli.quiz import showing
from app.cli.quiz.dialogue import Quit, Skip
from common.paths import data_dir
from quizzes.autopsies.programs import read
from quizzes.experiments.runner import RunFailed
from quizzes.grading import Graded, Part

if TYPE_CHECKING:
    from app.cli.quiz.sitting import Record, Sitting
    from quizzes.instance import Instance

CHECKS = "code_review.checks"
MENU = "Enter check · c show the program · h hint · r start over · g give up · ? help · q quit"
HELP = (
    "Edit your file in another window, then press Enter here: all checks run. Type a path to check another file. "
    "c prints the given program, h shows a hint, r replaces your file by the given program (yours is kept beside it), "
    "g ends the question with the checks that pass now, s skips it, q quits."
)


def workspace_file(folder: str) -> Path:
    """Return the path of the learner's copy of a program, which is created once and never overwritten."""
    return data_dir() / "workspace" / f"{folder}.py"


def ask_code(sitting: Sitting, instance: Instance, record: Record) -> None:
    """Run checks until all pass or the learner gives up. Raises Skip, Quit."""
    code = instance.question.code
    assert code is not None
    path = workspace_file(code.folder)
    if not path.exists():
        _write_given(path, code.folder)
    began = time.monotonic()
    sitting.say(f" your file: [bold]{escape(str(path))}[/]\n (or type the path of another file)\n")
    report: dict[str, Any] | None = None
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
            report = _check(sitting, code.folder, Path(line).expanduser() if line else path) or report
            if report is not None and report["num_passed"] == report["num_checks"]:
                break
    record.seconds = time.monotonic() - began
    report = report or sitting.run_experiment(CHECKS, {"folder": code.folder}).result
    record.replies = {"passed": f"{report['num_passed']} of {report['num_checks']}"}
    sitting.keep(instance, record, _graded(report), None)
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


def _check(sitting: Sitting, folder: str, path: Path) -> dict[str, Any] | None:
    """Run the checks and print the results. Return None if nothing could be run."""
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        sitting.say(f" [yellow]cannot read {escape(str(path))}: {escape(str(error))}[/]")
        return None
    if not source.strip():
        sitting.say(f" [yellow]{escape(str(path))} is empty; r restores the given program[/]")
        return None
    try:
        report = sitting.run_experiment(CHECKS, {"folder": folder, "source": source}).result
    except (RunFailed, ValueError) as error:
        sitting.say(f" [yellow]{escape(str(error))}[/]")
        return None
    for ok, says, why in zip(report["passed"], report["says"], report["why"], strict=True):
        sitting.say(f" {terminal.mark(ok)} {showing.inline(says)}")
        if why:
            sitting.say(f"     [yellow]{escape(why)}[/]")
    sitting.say(f" [bold]{report['num_passed']}/{report['num_checks']} checks[/]")
    return report


def _graded(report: dict[str, Any]) -> Graded:
    share = 1 / report["num_checks"]
    parts = tuple(
        Part(id=name, given=ok, expected=True, ok=ok, points=ok * share, max_points=share)
        for name, ok in zip(report["names"], report["passed"], strict=True)
    )
    return Graded(parts, "tests")

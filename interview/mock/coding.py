"""Coding rounds: exercises of the lessons, labs and programs to repair behind one interface."""

from __future__ import annotations

from dataclasses import dataclass, field

from interview.mock.scenario import Code


@dataclass(frozen=True)
class Checked:
    """The checks of a program, run in the sandbox."""

    passed: list[str]
    failed: list[str]
    lines: list[str] = field(default_factory=list)
    """Lines to show: per failed check its requirement and the smallest counter-example."""
    checks: list[tuple[bool, str, list[str]]] = field(default_factory=list)
    """Each check: whether it passes, its requirement, and why it fails."""
    problem: str = ""
    """Reason why no check could run."""

    @property
    def all_pass(self) -> bool:
        return bool(self.passed) and not self.failed


def name_of(code: Code) -> str:
    """Return a name for the candidate's file."""
    if code.exercise is not None:
        return f"exercise_{code.exercise.replace('.', '_')}"
    return str(code.program or code.lab).replace("-", "_")


def start(code: Code) -> str:
    """Return what the candidate begins with: a stub, or the program with its faults."""
    if name := _exercise(code):
        from lessons.course.lesson_files import find_exercise, stub

        return stub(find_exercise(name)[0], name)
    from quizzes.autopsies.programs import read

    return read(str(code.program))


def solution(code: Code) -> str:
    """Return a right program, for the report and for scripted candidates."""
    if name := _exercise(code):
        from lessons.course.lesson_files import solution as of_exercise

        return of_exercise(name)
    from quizzes.autopsies.programs import read

    return read(str(code.program), "solution")


def check(code: Code, source: str) -> Checked:
    """Run all checks on a program, in a process of its own within the limits of the sandbox."""
    if name := _exercise(code):
        from lessons.course.checking import run_checks
        from lessons.course.report_text import as_text, details

        report = run_checks(name, source)
        names = [(result.name, result.ok) for result in report.results]
        shown = [(result.ok, result.says, details(result)) for result in report.results]
        return _checked(names, as_text(report).splitlines(), shown, report.problem)
    from quizzes.autopsies.programs import run_checks as check_repair

    results = check_repair(str(code.program), source)
    lines = [f"{result.says} {result.why}" for result in results if not result.ok]
    shown = [(result.ok, result.says, [result.why] if result.why else []) for result in results]
    return _checked([(result.name, result.ok) for result in results], lines, shown)


def _exercise(code: Code) -> str | None:
    """Return the id under which the course keeps an exercise or a lab; None for a program to repair."""
    return code.exercise or code.lab


def _checked(
    names: list[tuple[str, bool]],
    lines: list[str],
    checks: list[tuple[bool, str, list[str]]],
    problem: str = "",
) -> Checked:
    passed, failed = ([name for name, ok in names if ok is wanted] for wanted in (True, False))
    return Checked(passed, failed, lines, checks, problem)

"""Functions that a lesson's cells call: predict, reveal, check, hint, explore, say.

this = open_lesson("07")
this.predict("waste", 15, unit="slots")      committed to the learner's state before the run
this.reveal("waste", measured)
this.check("07.1")
"""

from __future__ import annotations

import base64
import json
import math
import os
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from lessons.course import progress
from lessons.course.checking import Report
from lessons.course.lesson_files import (
    Lesson,
    exercise_cell,
    exercise_of,
    find_lesson,
    find_lesson_exercise,
    solution,
    stub,
)
from lessons.course.notebook_build import digest
from lessons.course.plots import png
from lessons.course.report_text import as_html, as_text
from lessons.course.widgets import Control, Draw, Explorer
from lessons.course.workspace import WorkspaceError, learner_source
from prep_common.child_process import JsonChild, ProcessEnded
from quizzes.state import StateError

CHECK_SECONDS = 300.0
LINE = 80
"""Characters of a line: JupyterLab breaks longer ones within a word."""
PUT_ANSWER = "Put your answer in place of ... and run this cell."
_WRITES = "PREP_LESSON_RECORDS"


def open_lesson(number: str) -> ThisLesson:
    """Return the lesson's object and print one line about it. Raises UnknownLesson."""
    _watch_cells()
    return ThisLesson(find_lesson(number))


class ThisLesson:
    """One open lesson. Everything displays in JupyterLab and VS Code, and works without widgets."""

    def __init__(self, lesson: Lesson) -> None:
        self.lesson = lesson
        self.quick = bool(os.environ.get("PREP_QUICK"))
        """Whether to use small sizes, for tests."""
        self.explorers: list[Explorer] = []
        self._predictions: dict[str, tuple[Any, str]] = {}
        self._revealed: set[str] = set()
        self._checker: JsonChild | None = None
        print(f"Lesson {lesson.number}: {lesson.title}. About {lesson.minutes} minutes.")

    # -- predict and reveal

    def predict(
        self,
        name: str,
        answer: Any = ...,
        *,
        question: str = "",
        unit: str = "",
        options: Sequence[str] = (),
        confidence: int | None = None,
    ) -> None:
        """Commit a prediction: a number from 0 up, or one of the options.

        The first one counts: the run below may already be known when it is changed.
        """
        if answer is ...:
            print(textwrap.fill(question, LINE), PUT_ANSWER, sep="\n" if question else "")
            return
        if wrong := _not_a_prediction(answer, unit, options):
            print(f"{wrong}. Nothing is committed; change it and run this cell again.")
            return
        if name in self._revealed and name not in self._predictions:
            print("the run below is known already, so a prediction no longer counts")
            return
        if name in self._predictions:
            print(f"committed before: {_with_unit(*self._predictions[name])}. The first prediction counts.")
            return
        self._predictions[name] = (answer, unit)
        with _told():
            progress.record_prediction(self.lesson, name, answer, confidence)
        print(f"committed: {_with_unit(answer, unit)}")

    def reveal(self, name: str, actual: Any) -> None:
        """Print the result beside the prediction."""
        actual = actual.item() if hasattr(actual, "item") else actual
        self._revealed.add(name)
        answer, unit = self._predictions.get(name, (None, ""))
        shown = _with_unit(actual, unit)
        if answer is None:
            print(f"{name.replace('-', ' ')}: {shown}. You made no prediction.")
            return
        print(
            f"{name.replace('-', ' ')}: you said {_with_unit(answer, unit)}, the run says {shown}: ", end=""
        )
        print(_compared(answer, actual))

    # -- show

    def plot(self, drawing: Any) -> None:
        """Show a matplotlib figure as a small PNG."""
        _display({"image/png": base64.b64encode(png(drawing)).decode(), "text/plain": "[plot]"})

    def show(self, what: Any) -> None:
        """Show a figure, or print text."""
        if hasattr(what, "savefig"):
            self.plot(what)
        else:
            print(what)

    def explore(self, name: str, draw: Draw, **controls: Control) -> None:
        """Show a picture with controls, and its result in words."""
        explorer = Explorer(name, draw, controls)
        self.explorers.append(explorer)
        _display(explorer._repr_mimebundle_())

    # -- exercises

    def source(self, exercise: str) -> str:
        """Return the cell of an exercise as it was last run here, else as it was last saved."""
        lesson, _ = find_lesson_exercise(exercise)
        for cell_id, text in reversed(_cells_run):
            if exercise_of(text) == exercise or cell_id == exercise_cell(lesson, exercise):
                return text
        try:
            saved = learner_source(lesson, exercise)
        except WorkspaceError:
            saved = None
        return saved if saved is not None else stub(lesson, exercise)

    def check(self, exercise: str) -> None:
        """Check the exercise's cell and show every check. The code runs in a process of its own, within limits."""
        source = self.source(exercise)
        if source.strip() == stub(self.lesson, exercise).strip():
            print(
                f"{exercise} is not written yet. Replace each `raise NotImplementedError` in its cell,\n"
                "run it, and run this cell."
            )
            print(f'this.hint("{exercise}") shows a hint.')
            return
        report = self._run_checks(exercise, source)
        if report.results:
            good = sum(result.ok for result in report.results)
            with _told():
                progress.record_check(
                    exercise, source, ok=report.ok, num_passed=good, num_checks=len(report.results)
                )
        _display({"text/html": as_html(report), "text/plain": as_text(report)})

    def _run_checks(self, exercise: str, source: str) -> Report:
        if self._checker is None or not self._checker.is_running:
            self._checker = JsonChild("lessons.course.check_process", name="the checker", grace_s=0.5)
        try:
            self._checker.write({"exercise": exercise, "source": source})
            answer = self._checker.read(CHECK_SECONDS)
        except ProcessEnded as ended:
            return Report(exercise, problem=f"the check could not run: {ended}")
        except BaseException:
            self._checker.kill()
            raise
        if answer is None:
            self._checker.kill()
            return Report(exercise, problem=f"the checks took more than {CHECK_SECONDS:.0f} s")
        return Report.from_json(answer)

    def hint(self, exercise: str) -> None:
        """Print the next hint. Each costs a fifth of the exercise's points."""
        _, facts = find_lesson_exercise(exercise)
        shown = _progress(exercise).hints
        number = min(shown + 1, len(facts.hints))
        cost = f"costs {progress.HINT_COST:.0%} of the points" if number > shown else "shown before"
        print(f"hint {number} of {len(facts.hints)} ({cost}): {facts.hints[number - 1]}")
        if number > shown:
            with _told():
                progress.record_hint(exercise, number)

    def piece(self, exercise: str) -> Any:
        """Return what the exercise defines: yours if it passed its checks, else the reference solution's.

        One object, or a tuple if the exercise defines several.
        """
        _, facts = find_lesson_exercise(exercise)
        source = self.source(exercise)
        is_mine = digest(source) in _progress(exercise).digests
        names: dict[str, Any] = {"__name__": f"exercise_{exercise.replace('.', '_')}"}
        exec(compile(source if is_mine else solution(exercise), f"<exercise {exercise}>", "exec"), names)
        print(f"{', '.join(facts.objects)}: {'yours' if is_mine else 'the reference solution'} ({exercise})")
        found = tuple(names[name] for name in facts.objects)
        return found[0] if len(found) == 1 else found

    # -- the end of a lesson

    def record(self, **facts: Any) -> None:
        """Keep facts for the tests of this lesson."""
        if place := os.environ.get(_WRITES):
            with open(place, "a", encoding="utf-8") as file:
                file.write(json.dumps(facts, default=float) + "\n")

    def holds(self, sentence: str, fact: bool) -> None:
        """Raise AssertionError in a build or a test if the figures above contradict a sentence of the text.

        A learner's own run has other sizes and another machine: there it does nothing.
        """
        if os.environ.get(_WRITES) and not fact:
            raise AssertionError(f"the figures contradict the text: {sentence}")

    def say(self) -> None:
        """Show the prompt, a place for an answer in prose, and the probes that test it."""
        from lessons.course.say import SayIt

        _display(SayIt(self.lesson)._repr_mimebundle_())

    def questions(self) -> None:
        """Ask the first of the bank's questions that this lesson prepares for."""
        from lessons.course.questions import InlineQuestion, unlocked

        print("Unlocked:", *self.lesson.unlocks, sep="\n  ")
        print(f"All of them, in a terminal: prep quiz --stage L{self.lesson.number}")
        for name in unlocked(self.lesson)[:1]:
            question = InlineQuestion(name, seed=1 if self.quick or os.environ.get(_WRITES) else None)
            _display({**question.widget()._repr_mimebundle_(), "text/plain": question.text})


@contextmanager
def _told() -> Iterator[None]:
    """Print why the learner's state cannot be read or written; the notebook goes on."""
    try:
        yield
    except StateError as error:
        print(f"Nothing is saved: {error}. {error.next_step}")


def _progress(exercise: str) -> progress.ExerciseProgress:
    """Return what is known of an exercise."""
    known: dict[str, progress.ExerciseProgress] = {}
    with _told():
        known = progress.exercise_progress()
    return known.get(exercise, progress.ExerciseProgress())


def _display(bundle: dict[str, Any]) -> None:
    try:
        from IPython.display import display

        display(bundle, raw=True)
    except ImportError:
        print(bundle.get("text/plain", ""))


_cells_run: list[tuple[str | None, str]] = []
"""Ids and sources of the cells that this kernel has run, oldest first."""


def _watch_cells() -> None:
    """Note the cells that this kernel runs: those of its history, and each one that follows."""
    try:
        from IPython import get_ipython
    except ImportError:
        return
    shell = get_ipython()
    if shell is None or _note_cell in shell.events.callbacks["pre_run_cell"]:
        return
    _cells_run.extend((None, str(text)) for text in shell.history_manager.input_hist_raw)
    shell.events.register("pre_run_cell", _note_cell)


def _note_cell(info: Any) -> None:
    _cells_run.append((info.cell_id, info.raw_cell))


def _not_a_prediction(answer: Any, unit: str, options: Sequence[str]) -> str:
    """Return why an answer cannot be compared with the run, or ""."""
    if options:
        return (
            ""
            if answer in options
            else f"the answer is one of {', '.join(map(repr, options))}, not {answer!r}"
        )
    if isinstance(answer, bool) or not isinstance(answer, int | float) or not math.isfinite(answer):
        return f"the answer is a number{f' ({unit})' if unit else ''}, not {answer!r}"
    return "" if answer >= 0 else f"the answer is 0 or more, not {answer!r}"


def _with_unit(value: Any, unit: str) -> str:
    text = f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)
    return f"{text} {unit}".strip()


def _compared(answer: Any, actual: Any) -> str:
    numbers = isinstance(answer, int | float) and isinstance(actual, int | float)
    if answer == actual:
        return "right"
    if numbers and not isinstance(answer, bool) and actual:
        return f"off by {abs(answer - actual) / abs(actual):.0%}"
    return "not the same"

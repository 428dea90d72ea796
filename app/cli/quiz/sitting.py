"""A sitting asks items in turn: predict, commit, run, explain, vary.

An answer is in the state file before its experiment starts, and an attempt as soon as it is graded, so a crash loses at
most the current item. Ctrl-C during a run stops the run, not the sitting.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rich.markup import escape
from rich.padding import Padding

from app.cli import terminal
from app.cli.quiz import showing
from app.cli.quiz.dialogue import Dialogue, Skip
from app.cli.quiz.replies import read_confidence, read_replies
from app.cli.quiz.running import run_told
from quizzes.answering import Record, commit, is_surprise, keep, keep_unscored
from quizzes.experiments.registry import Inconclusive, NeedsHardware
from quizzes.experiments.runner import Outcome, RunFailed, Runner
from quizzes.grading import grade
from quizzes.instance import Instance, QuestionError, draw
from quizzes.question_bank import Bank
from quizzes.state import Prediction, Session, State


@dataclass
class Sitting:
    """State of a sitting; `records` holds the outcomes of its items."""

    bank: Bank
    state: State
    session: Session
    dialogue: Dialogue
    runner: Runner
    exam: bool = False
    """No hints, and verdicts at the end only."""
    deadline: float | None = None
    """Value of time.monotonic() after which no further item starts."""
    records: list[Record] = field(default_factory=list)
    quiet: bool = False
    """Ask without showing anything: --json."""
    interrupted: bool = False
    """Ctrl-C ended it."""
    committed: dict[tuple[str, int], tuple[Prediction, float]] = field(default_factory=dict)
    """Answers that were saved before the sitting was killed, by question and seed, and the seconds they took."""

    def ask_probe(self, question_id: str, seed: int) -> Record:
        """Ask a machine-graded question inside another one: graded and kept, but not counted as an item."""
        instance = draw(self.bank.question(question_id), seed)
        self.show(instance, 0, 0)
        record = Record(question_id, seed, "asking")
        try:
            self.ask_graded(instance, record)
        except Skip:
            record.status = "skipped"
        return record

    def resume(self, instance: Instance, record: Record) -> Prediction | None:
        """Return the answer that was saved before the sitting was killed, and keep its time; None if there is none.

        Its time is at most the one from which an answer counts as slow: it may include days between two sittings.
        """
        prediction, seconds = self.committed.pop((instance.id, record.seed), (None, 0.0))
        if prediction is None or prediction.revision != instance.question.revision:
            return None
        record.seconds = min(seconds, 120 * instance.question.minutes)
        return prediction

    def ask_graded(self, instance: Instance, record: Record) -> tuple[Any, ...] | None:
        """Read answers and confidence, then grade. Raises Skip, Quit.

        Return (grades, attempt, result, expected), or None if the verdict was not shown.
        """
        prediction = self.resume(instance, record)
        if prediction is not None:
            record.replies, record.confidence = prediction.answer, prediction.confidence
            told = ", ".join(f"{key} {text}" for key, text in record.replies.items())
            self.say(f" [dim]your answer was saved before the interruption:[/] {escape(told)}")
            return self._judge(instance, record, prediction)
        began = time.monotonic()
        hint = None if self.exam else partial(self.hint, instance)
        record.replies, record.hints = read_replies(self.dialogue, instance, self.say, hint=hint)
        if instance.question.confidence:
            record.confidence = read_confidence(self.dialogue, self.say)
        record.seconds = time.monotonic() - began
        return self._judge(instance, record, commit(self.state, self.session, instance, record))

    def show(self, instance: Instance, number: int, total: int) -> None:
        """Print the question. If its exhibit shows a run, run that first."""
        if self.quiet:
            return
        showing.header(instance, number, total)
        run = instance.question.experiment
        if run is None or not instance.question.run_first:
            showing.body(instance)
            return
        try:
            with terminal.loading("the run that this question is about"):
                outcome = self.runner.run(run.run, instance.run_args())
        except (Inconclusive, NeedsHardware, RunFailed) as error:
            raise QuestionError(f"{instance.id}: {error}") from None
        showing.body(instance, outcome.result)

    def hint(self, instance: Instance, shown: int) -> int:
        """Print the next hint. Return 1, or 0 if there are no more."""
        hints = instance.question.hints
        if shown >= len(hints):
            self.say(" [dim]no more hints[/]")
            return 0
        hint = hints[shown]
        self.say(f" [bold]hint {shown + 1}/{len(hints)}[/] [dim](-{hint.cost:.0%})[/]")
        if not self.quiet:
            showing.console().print(showing.prose(instance.render(hint.text)))
        return 1

    # -- judging

    def _judge(self, instance: Instance, record: Record, prediction: Prediction) -> tuple[Any, ...] | None:
        question = instance.question
        run, outcome = question.experiment, None
        try:
            if run is not None:
                outcome = self.run_experiment(run.run, instance.run_args())
        except (Inconclusive, NeedsHardware, RunFailed) as error:
            self._unscored(instance, record, prediction.id, str(error))
            return None
        result = None if outcome is None else outcome.result
        graded = grade(instance, record.replies, result)
        expected = instance.expected(result)
        attempt = keep(self.state, self.session, instance, record, graded, prediction.id)
        record.expected = expected
        if self.exam or self.quiet:
            return None
        surprise = is_surprise(graded, record.confidence)
        showing.verdict(instance, graded, surprise=surprise)
        if question.choices:
            showing.why_options(instance, result, expected)
        showing.console().print()
        showing.explanation(instance, result, expected)
        return graded, attempt, result, expected

    def run_experiment(self, name: str, args: dict[str, Any]) -> Outcome:
        """Run an experiment and print progress. Ctrl-C stops only the run and raises RunFailed; else as Runner.run."""
        where = None if self.quiet or self.exam else showing.console()
        return run_told(self.runner, self.dialogue, name, args, where=where)

    def _unscored(self, instance: Instance, record: Record, prediction_id: str, why: str) -> None:
        """Save and show an answer that could not be graded; it does not count."""
        keep_unscored(self.state, self.session, instance, record, prediction_id, why)
        self.say(f" [yellow]not scored:[/] {escape(why)}")

    def say(self, text: str | Padding) -> None:
        if not self.quiet:
            showing.console().print(text)

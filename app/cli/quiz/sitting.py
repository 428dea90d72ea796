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
from quizzes.experiments.registry import Inconclusive, NeedsHardware
from quizzes.experiments.runner import Outcome, RunFailed, Runner
from quizzes.grading import Graded, grade
from quizzes.instance import Instance, QuestionError, draw
from quizzes.learning.review import SURE, rate
from quizzes.question_bank import Bank
from quizzes.state import Attempt, IntervalForecast, KeypointMark, Prediction, Session, State


@dataclass
class Record:
    """Outcome of one item, for the summary and for --json."""

    question_id: str
    seed: int
    status: str
    """asking at first, then right, reviewed (prose without a judge), partly, wrong, skipped or unscored."""
    points: float = 0.0
    points_max: float = 0.0
    confidence: int | None = None
    seconds: float = 0.0
    hints: int = 0
    replies: dict[str, str] = field(default_factory=dict)
    expected: dict[str, Any] = field(default_factory=dict)
    mistakes: list[str] = field(default_factory=list)
    why_unscored: str = ""


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

    def ask_graded(self, instance: Instance, record: Record) -> tuple[Any, ...] | None:
        """Read answers and confidence, then grade. Raises Skip, Quit.

        Return (grades, attempt, result, expected), or None if the verdict was not shown.
        """
        began = time.monotonic()
        hint = None if self.exam else partial(self.hint, instance)
        record.replies, record.hints = read_replies(self.dialogue, instance, self.say, hint=hint)
        if instance.question.confidence:
            record.confidence = read_confidence(self.dialogue, self.say)
        record.seconds = time.monotonic() - began
        return self._judge(instance, record)

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

    def _judge(self, instance: Instance, record: Record) -> tuple[Any, ...] | None:
        question = instance.question
        prediction = Prediction(
            self.session.id, question.id, question.revision, record.seed, record.replies, record.confidence
        )
        self.state.add(prediction)  # it is in the file before the experiment runs
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
        attempt = self.keep(instance, record, graded, prediction.id)
        record.expected = expected
        if self.exam or self.quiet:
            return None
        surprise = not graded.all_right and (record.confidence or 0) >= SURE
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

    def keep(
        self,
        instance: Instance,
        record: Record,
        graded: Graded,
        prediction_id: str | None,
        *,
        marks: tuple[KeypointMark, ...] = (),
        is_reviewed: bool = False,
    ) -> Attempt:
        """Save a graded answer. is_reviewed: remembered, but not scored, since no judge read it."""
        question = instance.question
        cost = sum(hint.cost for hint in question.hints[: record.hints])
        record.points = graded.points * max(0.0, 1.0 - cost)
        record.points_max = graded.max_points
        record.status = "right" if graded.all_right else "partly" if graded.points > 0 else "wrong"
        if is_reviewed:
            record.status = "reviewed"
        record.mistakes = list(graded.mistakes)
        rating = rate(
            correct=graded.all_right or is_reviewed,
            fraction=graded.points / graded.max_points if graded.max_points else 0.0,
            hints=record.hints,
            seconds=record.seconds,
            minutes=question.minutes,
            confidence=record.confidence,
        )
        intervals = tuple(
            IntervalForecast(part.id, *part.interval, float(part.expected), part.level or 0.8)
            for part in graded.parts
            if part.interval is not None
        )
        return self._add_attempt(
            instance,
            record,
            correct=graded.all_right,
            scored=not is_reviewed,
            grader=graded.grader,
            hints=record.hints,
            mistake_id=graded.mistakes[0] if graded.mistakes else None,
            rating=rating,
            prediction_id=prediction_id,
            marks=marks,
            intervals=intervals,
        )

    def _unscored(self, instance: Instance, record: Record, prediction_id: str, why: str) -> None:
        """Save and show an answer that could not be graded; it does not count."""
        record.status, record.why_unscored = "unscored", why
        self._add_attempt(
            instance,
            record,
            correct=False,
            grader="experiment",
            scored=False,
            prediction_id=prediction_id,
            detail={"why": why},
        )
        self.say(f" [yellow]not scored:[/] {escape(why)}")

    def _add_attempt(self, instance: Instance, record: Record, **grades: Any) -> Attempt:
        return self.state.add(
            Attempt(
                session_id=self.session.id,
                question_id=instance.id,
                revision=instance.question.revision,
                seed=record.seed,
                answer=record.replies,
                points=record.points,
                points_max=record.points_max,
                elapsed_ms=round(1000 * record.seconds),
                confidence=record.confidence,
                **grades,
            )
        )

    def say(self, text: str | Padding) -> None:
        if not self.quiet:
            showing.console().print(text)

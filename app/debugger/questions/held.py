"""Questions that are open in this server's tabs: one tab each, with its worker process and its verdict.

A reloaded tab takes its question back. What was committed is in the state file: after a restart of the server it is
read from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from app.debugger.own_runs import new_path
from app.debugger.tabs import Job, Keeper
from quizzes.answering import Record, challenge_args, challenge_reply, commit, is_met, keep, keep_unscored
from quizzes.answering import next_follow_up as follow_up_of
from quizzes.experiments.runner import Outcome, Runner
from quizzes.grading import Graded, grade
from quizzes.instance import Instance, draw
from quizzes.question import FollowUp
from quizzes.question_bank import Bank, load_bank
from quizzes.state import Attempt, Session, State, StateError
from quizzes.state.records import utc_now

STOPPED = "the run was interrupted"


@dataclass
class Aside:
    """A further run after the verdict: other arguments, a challenge, a recording."""

    kind: str
    reply: Any = None
    """The learner's reply to a challenge."""
    result: dict[str, Any] | None = None
    name: str = ""
    met: bool | None = None
    """Whether a challenge is met."""
    path: Path | None = None
    """The trace of a recording; None if the experiment steps no engine."""
    problem: str = ""


@dataclass
class Held:
    """A question in a tab, from its prompt to its verdict."""

    session: Session
    """Its sitting, which is in the state file once the answer is committed."""
    instance: Instance
    owner: str
    record: Record
    prediction_id: str = ""
    """Empty until the answer is committed."""
    graded: Graded | None = None
    attempt: Attempt | None = None
    result: dict[str, Any] | None = None
    expected: dict[str, Any] = field(default_factory=dict)
    run_seconds: float | None = None
    """Time of the run; None if its result was known."""
    follow_up: FollowUp | None = None
    aside: Aside | None = None
    unsaved: str = ""
    """The reason, if the answer is not in the state file."""
    runner: Runner = field(default_factory=Runner)
    job: Job | None = None
    left_at: float | None = None
    """When its tab was first seen closed."""

    @property
    def is_committed(self) -> bool:
        return bool(self.prediction_id)

    @property
    def is_over(self) -> bool:
        """Return whether the answer has its verdict, or cannot get one."""
        return self.record.status != "asking"

    def commit(self, replies: dict[str, str], confidence: int | None) -> None:
        """Save the answer, then start the run. It cannot be changed afterwards."""
        if self.is_committed:
            return
        record = self.record
        record.replies, record.confidence = replies, confidence
        record.seconds = (utc_now() - self.session.started).total_seconds()
        self.session.spec.update(hints=record.hints, seconds=round(record.seconds, 1))
        saved = self._write(self._save_prediction)
        self.prediction_id = saved or "not saved"
        self.run()

    def _save_prediction(self, state: State) -> str:
        state.add(self.session)
        return commit(state, self.session, self.instance, self.record).id

    def run(self) -> None:
        """Start the run that decides the answer; a question without one is graded at once."""
        run = self.instance.question.experiment
        if run is None:
            self._grade(None)
        elif self.job is None:
            args = self.instance.run_args()
            self.job = Job("answer", lambda: self.runner.run(run.run, args), self.runner.close)

    def vary(self, args: dict[str, Any]) -> None:
        """Run the experiment with other arguments."""
        run = self.instance.question.experiment
        assert run is not None
        self._beside(Aside("vary"), lambda: self.runner.run(run.run, args))

    def watch(self) -> None:
        """Run the experiment again and record its steps for the page Step."""
        run = self.instance.question.experiment
        assert run is not None
        path, args = new_path(self.instance.id.split(".")[1]), self.instance.run_args()
        self._beside(Aside("record", path=path), lambda: self.runner.run(run.run, args, trace=path))

    def challenge(self, text: str) -> None:
        """Run the learner's reply to a challenge. Raises ValueError with what to type."""
        follow_up = self.follow_up
        assert follow_up is not None and follow_up.experiment is not None
        reply, name = challenge_reply(self.instance, follow_up, text), follow_up.experiment.run
        args = challenge_args(self.instance, follow_up, reply)
        self._beside(Aside("challenge", reply), lambda: self.runner.run(name, args))

    def _beside(self, aside: Aside, work: Callable[[], Outcome]) -> None:
        if self.job is None:
            self.aside = aside
            self.job = Job(aside.kind, work, self.runner.close)

    def settle(self) -> None:
        """Take over the result of a run that has ended."""
        job = self.job
        if job is None or not job.is_done:
            return
        self.job = None
        if job.turn != "answer":
            self._end_aside(job)
        elif job.is_stopped or job.error is not None:
            self._leave_unscored(STOPPED if job.is_stopped else str(job.error) or type(job.error).__name__)
        else:
            outcome: Outcome = job.result
            self.run_seconds = None if outcome.cached else outcome.seconds
            self._grade(outcome.result)

    def _grade(self, result: dict[str, Any] | None) -> None:
        record, instance = self.record, self.instance
        graded = grade(instance, record.replies, result)
        self.result, self.expected = result, instance.expected(result)
        record.expected = self.expected
        if self.attempt is None:
            self.attempt = self._write(lambda state: self._save_attempt(state, graded))
        record.status = "right" if graded.all_right else "partly" if graded.points > 0 else "wrong"
        self.follow_up = follow_up_of(instance, graded, record.confidence)
        self.graded = graded

    def _save_attempt(self, state: State, graded: Graded) -> Attempt:
        attempt = keep(state, self.session, self.instance, self.record, graded, self.prediction_id)
        state.end_session(self.session.id)
        return attempt

    def _leave_unscored(self, why: str) -> None:
        def save(state: State) -> Attempt:
            args = (state, self.session, self.instance, self.record, self.prediction_id, why)
            attempt = keep_unscored(*args)
            state.end_session(self.session.id)
            return attempt

        self.record.status, self.record.why_unscored = "unscored", why
        if self.attempt is None:
            self.attempt = self._write(save)

    def _end_aside(self, job: Job) -> None:
        aside = self.aside
        assert aside is not None
        if job.is_stopped or job.error is not None:
            aside.problem = STOPPED if job.is_stopped else str(job.error) or type(job.error).__name__
            return
        outcome: Outcome = job.result
        aside.name, aside.result = outcome.name, outcome.result
        if aside.kind == "record" and aside.path is not None and not aside.path.exists():
            aside.path = None
        if aside.kind == "challenge" and self.follow_up is not None:
            try:
                aside.met = is_met(self.instance, self.follow_up, aside.reply, outcome.result)
            except ValueError as error:
                aside.problem = str(error)

    def lower_rating(self) -> None:
        """Repeat the question as if the answer had been wrong: the learner guessed."""
        attempt = self.attempt
        if attempt is not None:
            self._write(lambda state: state.lower_rating(attempt.id, 1))

    def _write(self, save: Callable[[State], Any]) -> Any:
        """Write into the state file; None, with the reason in `unsaved`, if that is impossible."""
        if self.unsaved:
            return None
        try:
            with State.open() as state:
                return save(state)
        except StateError as error:
            self.unsaved = f"{error}. {error.next_step}"
            return None


HELD: Keeper[Held] = Keeper(lambda held: release(held))


@cache
def bank() -> Bank:
    return load_bank()


def ask(question_id: str, seed: int, tab: str) -> Held:
    """Open a question with the numbers of a seed. Raises UnknownId, QuestionError."""
    instance = draw(bank().question(question_id), seed)
    spec = {"question": [question_id], "items": [[question_id, seed]]}
    held = Held(Session("quiz", spec), instance, tab, Record(question_id, seed))
    if instance.question.experiment is not None:
        held.runner.warm(instance.question.experiment.run)
    return HELD.hold(held.session.id, held)


def take(session_id: str, tab: str) -> Held | None:
    """Return the open question of a sitting, or what the state file has of it; None if neither knows it.

    Raises OpenElsewhere, StateError, UnknownId.
    """
    return HELD.take(session_id, tab) or _from_file(session_id, tab)


def _from_file(session_id: str, tab: str) -> Held | None:
    with State.open() as state:
        attempts = state.attempts(session_id=session_id)
        predictions = state.predictions(session_id)
        session = next((sitting for sitting in state.sessions() if sitting.id == session_id), None)
    if session is None or not predictions:
        return None
    prediction = predictions[-1]
    answers = [attempt for attempt in attempts if attempt.prediction_id == prediction.id]
    instance = draw(bank().question(prediction.question_id), prediction.seed)
    record = Record(
        prediction.question_id,
        prediction.seed,
        confidence=prediction.confidence,
        seconds=session.spec.get("seconds", 0.0),
        hints=session.spec.get("hints", 0),
        replies=prediction.answer,
    )
    held = Held(session, instance, tab, record, prediction.id)
    if answers:
        held.attempt = answers[-1]
        record.points, record.points_max = held.attempt.points, held.attempt.points_max
        record.hints = held.attempt.hints
    if answers and not answers[-1].scored:
        record.status, record.why_unscored = "unscored", str(answers[-1].detail.get("why", ""))
    else:
        held.run()
    return HELD.hold(session_id, held)


def release(held: Held) -> None:
    """End the worker of a question whose tab is gone, or that was left."""
    HELD.drop(held.session.id, held)
    if held.job is not None:
        held.job.stop()
    held.runner.close()

"""One answer, from its commitment to its attempt in the state file. `prep quiz` and the page Questions use it.

record = Record(question.id, seed, replies={"static": "124"}, confidence=80, seconds=31.0)
prediction = commit(state, session, instance, record)      # in the file before the experiment runs
result = runner.run(...).result                            # without a result: keep_unscored
graded = grade(instance, record.replies, result)
attempt = keep(state, session, instance, record, graded, prediction.id)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from prep_common.text import plain_value
from prep_common.typed_value import parse_value
from quizzes.expressions import ExpressionError, evaluate, resolve
from quizzes.grading import Graded, Part
from quizzes.instance import Instance
from quizzes.learning.review import SURE, rate
from quizzes.question import FollowUp
from quizzes.state import Attempt, IntervalForecast, KeypointMark, Prediction, Session, State

NOT_RUN = "this reply cannot be run: are the count and the kind of its values right?"


@dataclass
class Record:
    """Outcome of one item. Scripts read these field names from --json."""

    question_id: str
    seed: int
    status: str = "asking"
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


def commit(state: State, session: Session, instance: Instance, record: Record) -> Prediction:
    """Save what the learner predicts. It is in the file when this returns: the experiment may run."""
    return state.add(
        Prediction(
            session.id,
            instance.id,
            instance.question.revision,
            record.seed,
            record.replies,
            record.confidence,
        )
    )


def keep(
    state: State,
    session: Session,
    instance: Instance,
    record: Record,
    graded: Graded,
    prediction_id: str | None,
    *,
    marks: tuple[KeypointMark, ...] = (),
    is_reviewed: bool = False,
) -> Attempt:
    """Save a graded answer, which sets the day of its next review. Its outcome is in the record then.

    is_reviewed: remembered, but not scored, since no judge read it.
    """
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
    return _add_attempt(
        state,
        session,
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


def keep_unscored(
    state: State, session: Session, instance: Instance, record: Record, prediction_id: str, why: str
) -> Attempt:
    """Save an answer that could not be graded; it does not count."""
    record.status, record.why_unscored = "unscored", why
    return _add_attempt(
        state,
        session,
        instance,
        record,
        correct=False,
        grader="experiment",
        scored=False,
        prediction_id=prediction_id,
        detail={"why": why},
    )


def _add_attempt(
    state: State, session: Session, instance: Instance, record: Record, **grades: Any
) -> Attempt:
    return state.add(
        Attempt(
            session_id=session.id,
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


def is_surprise(graded: Graded, confidence: int | None) -> bool:
    """Return whether a wrong answer was given with a high confidence."""
    return not graded.all_right and (confidence or 0) >= SURE


LONGEST_OPTION = 60
"""Characters of an option beside the right one."""


def shown(instance: Instance, part: Part, value: Any) -> str:
    """Return a value as the learner saw it: an option by its number and words, several by their numbers, figures with
    their unit."""
    question = instance.question
    if part.id == "choice" and isinstance(value, list):
        order = [choice.id for choice in instance.choices()]
        numbers = sorted(order.index(v) + 1 for v in value)
        if len(numbers) == 1 and question.kind != "multi":
            text = " ".join(instance.render(instance.choices()[numbers[0] - 1].text).split())
            return (
                f"{numbers[0]}: {text if len(text) <= LONGEST_OPTION else text[: LONGEST_OPTION - 1] + '…'}"
            )
        return ", ".join(map(str, numbers)) or "none"
    if part.id == "order" and isinstance(value, list):
        order = instance.items()
        return " ".join(str(order.index(v) + 1) for v in value)
    if not part.unit or question.kind == "choice" or isinstance(value, list):
        return plain_value(value)
    is_word = len(part.unit) > 3 and part.unit.endswith("s")
    return f"{plain_value(value)} {part.unit.removesuffix('s') if is_word and value == 1 else part.unit}"


def reasons(
    instance: Instance, result: dict[str, Any] | None, expected: dict[str, Any]
) -> list[tuple[int, bool, str]]:
    """Return (number on the screen, is right, why) of the options that have a reason, right ones first."""
    right = set(expected.get("choice", ()))
    numbered = list(enumerate(instance.choices(), 1))
    return [
        (number, choice.id in right, instance.render(choice.why, result=result, expected=expected))
        for number, choice in sorted(numbered, key=lambda pair: pair[1].id not in right)
        if choice.why
    ]


def next_follow_up(instance: Instance, graded: Graded, confidence: int | None) -> FollowUp | None:
    """Return the first follow-up whose condition holds."""
    simple = {"true": True, "correct": graded.all_right, "wrong": not graded.all_right}
    answers = {part.id: {"correct": part.ok, "given": part.given} for part in graded.parts}
    for follow_up in instance.question.followups:
        condition = follow_up.if_.strip()
        try:
            holds = simple.get(condition)
            if holds is None:
                names = {**instance.params, "answers": answers, "confidence": confidence or 0, **simple}
                holds = bool(evaluate(condition, names))
        except ExpressionError:
            holds = False
        if holds:
            return follow_up
    return None


def challenge_reply(instance: Instance, follow_up: FollowUp, text: str) -> Any:
    """Return the reply to a challenge, of the kind of its witness. Raises ValueError with what to type."""
    witness = resolve(follow_up.witness or {}, instance.params).get("reply")
    reply = parse_value(text)
    if isinstance(witness, list):
        values = reply if isinstance(reply, list) else [reply]
        if witness and _kind(witness[0]) is float and not all(_kind(value) is float for value in values):
            raise ValueError("type numbers with commas between them, such as 4, 9, 3")
        return values
    if _kind(witness) is float and _kind(reply) is not float:
        raise ValueError("type one number, such as 12 or 0.5")
    return reply


def challenge_args(instance: Instance, follow_up: FollowUp, reply: Any) -> dict[str, Any]:
    """Return the arguments of a challenge's run. Raises ValueError for a reply that cannot be run."""
    assert follow_up.experiment is not None
    try:
        return dict(resolve(follow_up.experiment.args, {**instance.params, "reply": reply}))
    except ExpressionError:
        raise ValueError(NOT_RUN) from None


def is_met(instance: Instance, follow_up: FollowUp, reply: Any, result: dict[str, Any]) -> bool:
    """Return whether the run's result meets a challenge. Raises ValueError for a reply that cannot be judged."""
    assert follow_up.pass_ is not None
    try:
        return bool(evaluate(follow_up.pass_, {**instance.params, "reply": reply, "result": result}))
    except ExpressionError:
        raise ValueError(NOT_RUN) from None


def _kind(value: Any) -> type:
    """Return float for any number; True and False are none."""
    return float if isinstance(value, int | float) and not isinstance(value, bool) else type(value)

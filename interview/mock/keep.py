"""Keep a session in the learner's state: its first question as an answer, and cards for what it missed."""

from __future__ import annotations

from interview.mock.report.build import cards
from interview.mock.session import Session
from quizzes.learning.review import AGAIN, rate
from quizzes.question_bank import load_bank
from quizzes.state import Attempt, IntervalForecast, State


def keep(session: Session, state: State) -> list[str]:
    """Add the session's facts, once. Return the questions whose cards were made due.

    A missed step is no answer to the question of the bank that it names: its card comes up again, and no score
    changes.
    """
    mine = {"mock": session.spec.id}
    if any(kept.spec.get("mock") == session.spec.id for kept in state.sessions(kind="mock")):
        return []
    held = state.begin_session(
        "mock", {**mine, "role": session.spec.role, "scenarios": list(session.spec.scenarios)}
    )
    bank = load_bank()
    due = [
        name for name in cards(session.talk, {d.scenario.id: d for d in session.scenarios}) if name in bank
    ]
    for asked in session.talk.asked:
        if asked.stage == "warm" and asked.all_right is not None:
            question = bank.question(session.spec.warm)
            due = [name for name in due if name != question.id]
            state.add(
                Attempt(
                    held.id,
                    question.id,
                    question.revision,
                    session.spec.seed,
                    asked.replies["replies"],
                    float(asked.all_right),
                    1.0,
                    asked.all_right,
                    "experiment" if question.experiment else "exact",
                    elapsed_ms=round(1000 * asked.seconds),
                    confidence=asked.confidence,
                    rating=rate(
                        correct=asked.all_right,
                        fraction=float(asked.all_right),
                        hints=0,
                        seconds=asked.seconds,
                        minutes=question.minutes,
                        confidence=asked.confidence,
                    ),
                    intervals=tuple[IntervalForecast, ...](),
                    detail=mine,
                )
            )
    for name in due:
        revision = bank.entries[name].revision
        missed = Attempt(held.id, name, revision, session.spec.seed, None, 0.0, 1.0, False, "experiment")
        state.add(_unscored(missed, mine))
    state.end_session(held.id)
    return due


def _unscored(attempt: Attempt, detail: dict[str, str]) -> Attempt:
    from dataclasses import replace

    return replace(attempt, scored=False, rating=AGAIN, detail=detail)

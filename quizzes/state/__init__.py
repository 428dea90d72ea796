"""The learner's state: one SQLite file of append-only facts, and values derived from them.

    from quizzes.state import State

    with State.open() as state:
        session = state.begin_session("quiz", {"topic": "batching", "seed": 7})
        committed = state.add(Prediction(session.id, "batching.static_vs_continuous", revision=1, seed=7,
                                         answer={"static": 124}, confidence=90))
        ...                                        # now the experiment may run
        state.add(Attempt(session_id=session.id, prediction_id=committed.id, ...))

This package knows neither questions nor schedules: `quizzes.learning` computes cards and statistics from the facts.
"""

from quizzes.state.database import ArchiveRefused, StateDamaged, StateError, StateTooNew, StateUnavailable
from quizzes.state.records import Attempt, IntervalForecast, KeypointMark, Prediction, Session, Settings, Vote
from quizzes.state.store import State

__all__ = [
    "ArchiveRefused",
    "Attempt",
    "IntervalForecast",
    "KeypointMark",
    "Prediction",
    "Session",
    "Settings",
    "State",
    "StateDamaged",
    "StateError",
    "StateTooNew",
    "StateUnavailable",
    "Vote",
]

"""Finish a session: its facts in the learner's state, its report beside the log."""

from __future__ import annotations

from interview.mock.keep import keep
from interview.mock.report import Report, load, make, save
from interview.mock.report.judging import Verdicts
from interview.mock.session import Session, sessions
from quizzes.state import State


def finish(session: Session, state: State, *, judged: Verdicts | None = None) -> Report:
    """Keep the answers and cards of a session that is over, write its report, and return it.

    Finishing twice is idempotent. Raises OSError, SessionError.
    """
    saved = load(session.spec.id)
    if saved is not None and saved.finished:
        return saved
    keep(session, state)
    report = make(session, sessions(), judged=judged)
    save(report)
    return report

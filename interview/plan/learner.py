"""Input of a plan: settings, time until the interview, and what the learner has done so far."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import mean

from interview.mock.session import Saved, sessions
from interview.plan.layout import session_days
from lessons.course.lesson_files import Lesson, labs, lessons
from lessons.course.progress import PREFIX
from quizzes.claims.claim_list import Claims, load_claims
from quizzes.learning.progress import Progress, asked, progress
from quizzes.learning.review import Card, cards
from quizzes.learning.selection import is_ready, local_now
from quizzes.question_bank import Bank, Entry
from quizzes.state import Attempt, Settings, State

CLAIM_MINUTES = 4.0
"""Minutes to vote on a claim, run its test and read the verdict."""


@dataclass(frozen=True)
class Learner:
    """The learner's facts as of `now`."""

    now: dt.datetime
    settings: Settings
    bank: Bank
    attempts: Sequence[Attempt]
    cards: Mapping[str, Card]
    claims: Claims
    voted: Mapping[str, dt.datetime]
    """Claim with a verdict -> time of the vote."""
    mocks: Sequence[Saved]
    """Mock interviews that were finished."""
    progress: Progress

    @classmethod
    def read(cls, bank: Bank, state: State, now: dt.datetime | None = None) -> Learner:
        """Read the learner's facts. Raises StateError if the state cannot be read."""
        now = now or local_now()
        return cls(
            now=now,
            settings=state.settings,
            bank=bank,
            attempts=state.attempts(),
            cards={
                name: card for name, card in cards(state, now).items() if name in bank and not card.suspended
            },
            claims=load_claims(),
            voted={vote.claim_id: vote.at for vote in state.votes() if vote.verdict},
            mocks=[saved for saved in sessions() if saved.is_over],
            progress=progress(bank, state, now=now),
        )

    @property
    def today(self) -> dt.date:
        return self.now.date()

    @property
    def interview(self) -> dt.date:
        assert self.settings.interview_date is not None, "a plan needs an interview date"
        return self.settings.interview_date

    @cached_property
    def days(self) -> list[dt.date]:
        """Days on which to practise."""
        return session_days(self.today, self.interview, self.settings.hours_per_week)

    @cached_property
    def entries(self) -> list[Entry]:
        """Questions of the learner's role and level."""
        return asked(self.bank, self.settings.role, self.settings.level)

    @cached_property
    def unseen(self) -> list[Entry]:
        seen = {attempt.question_id for attempt in self.attempts if attempt.rating}
        return [entry for entry in self.entries if entry.id not in seen]

    @cached_property
    def minutes_per_question(self) -> float:
        return mean(entry.minutes for entry in self.entries or self.bank)

    @cached_property
    def weights(self) -> dict[str, float]:
        """Topic -> number of the role's questions on it, less what the learner knows of them."""
        return {t.topic: t.available * (1 - t.readiness / 100) for t in self.progress.topics}

    @cached_property
    def passed(self) -> dict[str, dt.datetime]:
        """Exercise -> when it first passed its checks."""
        first: dict[str, dt.datetime] = {}
        for attempt in sorted(self.attempts, key=lambda attempt: attempt.at):
            if (
                attempt.question_id.startswith(PREFIX)
                and attempt.detail.get("event") == "check"
                and attempt.correct
            ):
                first.setdefault(attempt.question_id.removeprefix(PREFIX), attempt.at)
        return first

    @cached_property
    def due(self) -> dict[str, Card]:
        """Cards that are due today, surprises included."""
        return {name: card for name, card in self.cards.items() if is_ready(card, self.now)}

    def minutes_today(self) -> float:
        """Return the minutes that today's answers, exercises, votes and mock interviews were planned with."""
        done = sum(exercise_minutes(name) for name, at in self.passed.items() if self._is_today(at))
        done += CLAIM_MINUTES * sum(map(self._is_today, self.voted.values()))
        done += sum(self.bank.entries[name].minutes for name in self._answered_today())
        return done + sum(s.spec.minutes for s in self.mocks if s.spec.started and mock_date(s) == self.today)

    def _answered_today(self) -> Counter[str]:
        return Counter(
            a.question_id for a in self.attempts if a.question_id in self.bank and self._is_today(a.at)
        )

    def _is_today(self, at: dt.datetime) -> bool:
        return at.astimezone(self.now.tzinfo).date() == self.today


def mock_date(saved: Saved) -> dt.date:
    started = dt.datetime.fromisoformat(saved.spec.started)
    return (started if started.tzinfo else started.replace(tzinfo=dt.UTC)).astimezone().date()


def exercise_minutes(name: str) -> float:
    """Return a lab's minutes, or the share of its lesson's minutes that an exercise stands for, reading included; 0 if
    it is unknown."""
    for lesson in lessons():
        if name in lesson.exercises:
            return parts(lesson)[name]
    return float(sum(lab.exercise.minutes for lab in labs() if lab.number == name))


def parts(lesson: Lesson) -> dict[str, float]:
    """Return exercise -> minutes: the lesson's minutes, divided in proportion to its exercises."""
    total = sum(exercise.minutes for exercise in lesson.exercises.values())
    return {name: lesson.minutes * facts.minutes / total for name, facts in lesson.exercises.items()}

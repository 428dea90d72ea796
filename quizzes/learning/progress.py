"""Progress per topic, and readiness with its formula.

    strength(question) = probability of remembering it now x share of the points of its last answer
    readiness(topic)   = 100 x coverage x mean strength of the questions seen
                         coverage = questions seen / min(ENOUGH, questions of the topic), at most 1
    readiness          = mean over topics, weighted by their number of questions for the role

Only questions for the learner's role and up to the level's difficulty count. Unseen topics count as 0.
"""

import datetime as dt
import math
from dataclasses import dataclass
from statistics import fmean

from quizzes.learning import grouped
from quizzes.learning.placement import LEVELS
from quizzes.learning.review import Card, cards
from quizzes.learning.selection import is_ready, local_now
from quizzes.question_bank import Bank, Entry
from quizzes.state import Attempt, State

ENOUGH = 8
"""Questions that cover a topic."""
FORMULA = (
    "per topic 100 x coverage x mean(recall now x last score); coverage = seen / min(8, available); "
    "total weighted by the questions your role is asked"
)


@dataclass(frozen=True)
class TopicProgress:
    """Progress in one topic. Values are None without data."""

    topic: str
    available: int
    """Questions for this role and level."""
    seen: int
    attempts: int
    accuracy: float | None
    """Share of scored attempts that were right."""
    retention: float | None
    """Mean probability that a seen question is remembered now."""
    surprises: int
    """Questions last answered wrong with high confidence."""
    due: int
    suspended: int
    readiness: float
    """0 to 100."""


@dataclass(frozen=True)
class Progress:
    """Progress in all topics of the learner's role, and readiness."""

    topics: tuple[TopicProgress, ...]
    readiness: float
    lever: str | None
    """The topic whose mastery would raise readiness most."""

    @property
    def due(self) -> int:
        return sum(topic.due for topic in self.topics)

    @property
    def surprises(self) -> int:
        return sum(topic.surprises for topic in self.topics)


def progress(
    bank: Bank,
    state: State,
    *,
    role: str | None = None,
    level: str | None = None,
    now: dt.datetime | None = None,
) -> Progress:
    """Compute the progress. role, level: default to the settings."""
    now = now or local_now()
    settings = state.settings
    entries = asked(bank, role or settings.role, level or settings.level)
    known = cards(state, now)
    by_question = grouped(state.attempts(scored=True), lambda attempt: attempt.question_id)
    by_topic = grouped(entries, lambda entry: entry.topic)
    topics = tuple(
        _topic(topic, of_topic, known, [a for entry in of_topic for a in by_question.get(entry.id, ())], now)
        for topic, of_topic in sorted(by_topic.items())
    )
    total = sum(topic.available for topic in topics)
    gains = {topic.topic: topic.available * (100 - topic.readiness) for topic in topics}
    return Progress(
        topics=topics,
        readiness=math.fsum(t.readiness * t.available for t in topics) / total if total else 0.0,
        lever=max(sorted(gains), key=gains.__getitem__) if any(gains.values()) else None,
    )


def asked(bank: Bank, role: str | None, level: str | None) -> list[Entry]:
    """Return the questions for a role and level."""
    hardest = LEVELS.get(level or "", 5)
    return [e for e in bank if (role is None or role in e.roles) and e.difficulty <= hardest]


def strength(card: Card, now: dt.datetime) -> float:
    """Return the expected share of points if the question were asked now, 0 to 1."""
    return card.retrievability(now) * card.last_fraction


def _topic(
    topic: str, entries: list[Entry], known: dict[str, Card], attempts: list[Attempt], now: dt.datetime
) -> TopicProgress:
    seen = [known[entry.id] for entry in entries if entry.id in known]
    active = [card for card in seen if not card.suspended]
    coverage = min(len(seen) / min(ENOUGH, len(entries)), 1.0)
    return TopicProgress(
        topic=topic,
        available=len(entries),
        seen=len(seen),
        attempts=len(attempts),
        accuracy=sum(a.correct for a in attempts) / len(attempts) if attempts else None,
        retention=fmean([card.retrievability(now) for card in seen]) if seen else None,
        surprises=sum(card.surprise for card in seen),
        due=sum(is_ready(card, now) for card in active),
        suspended=len(seen) - len(active),
        readiness=100 * coverage * fmean([strength(card, now) for card in seen]) if seen else 0.0,
    )

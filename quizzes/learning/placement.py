"""A first estimate from twelve short questions: where to begin, not a mark.

Six topics that the role is asked about most, two questions each. The first is as hard as the estimate so far; the
second goes up or down by what the first one showed. One or two answers say little about a topic: the result names
its evidence.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from quizzes.learning.selection import figures_seed
from quizzes.question_bank import Bank, Entry

ITEMS, PER_TOPIC = 12, 2
LONGEST = 6.0
"""Minutes: placement should take a quarter of an hour."""
LEVELS = {"junior": 2, "mid": 3, "senior": 4, "staff": 5}
"""Level -> the hardest questions that it is asked."""
START = {"junior": 1.5, "mid": 2.0, "senior": 3.0, "staff": 3.5}
STEP = 0.5
"""By which one answer moves the estimate."""
UNSUITED = ("free", "design", "code")
"""Kinds that take long or are marked by oneself."""


@dataclass(frozen=True)
class Answered:
    """One of the twelve."""

    entry: Entry
    correct: bool


@dataclass(frozen=True)
class TopicResult:
    """What the answers of one topic showed."""

    topic: str
    asked: int
    correct: int
    hardest_right: int
    """Difficulty of the hardest question that was right; 0 if none was."""


@dataclass(frozen=True)
class Result:
    """Of a placement, whole or cut short."""

    answered: int
    correct: int
    difficulty: float
    """Estimate of the difficulty (1 to 5) that the learner gets right about every second time."""
    topics: tuple[TopicResult, ...]
    """The weakest first."""

    @property
    def begin_with(self) -> str | None:
        return self.topics[0].topic if self.topics else None


class Placement:
    """Asks, listens, and asks harder or easier. The same seed and answers give the same questions."""

    def __init__(self, bank: Bank, role: str | None, level: str | None = None, seed: int = 0) -> None:
        self.seed = seed
        self.ability = START.get(level or "", 2.0)
        self.answers: list[Answered] = []
        self._rng = Random(f"placement:{seed}")
        entries = [
            entry
            for entry in bank
            if (role is None or role in entry.roles)
            and entry.kind not in UNSUITED
            and entry.minutes <= LONGEST
            and not entry.needs_probes
        ]
        self._by_topic: dict[str, list[Entry]] = {}
        for entry in sorted(entries, key=lambda entry: entry.id):
            self._by_topic.setdefault(entry.topic, []).append(entry)
        self._plan = self._topics() * PER_TOPIC
        """Topic of each question to come: all topics once, then all again."""

    def next(self) -> Entry | None:
        """The next question, or None at the end. Asking twice gives the same one until `answer` is called."""
        asked = {answered.entry.id for answered in self.answers}
        if len(self.answers) >= ITEMS:
            return None
        turn = len(self.answers)
        topics = self._plan[turn : turn + 1] + self._plan  # its turn; later ones where that topic has run out
        for topic in topics:
            left = [entry for entry in self._by_topic[topic] if entry.id not in asked]
            if left:
                wanted = self._wanted(topic)
                return min(
                    left, key=lambda entry: (abs(entry.difficulty - wanted), self._noise(entry), entry.id)
                )
        return None

    def answer(self, entry: Entry, correct: bool) -> None:
        """Its outcome. One that could not be decided is not reported; ask another instead with `skip`."""
        self.answers.append(Answered(entry, correct))
        self.ability = min(max(self.ability + (STEP if correct else -STEP), 1.0), 5.0)

    def skip(self, entry: Entry) -> None:
        """It could not be decided: it is not asked again and counts for nothing."""
        self._by_topic[entry.topic] = [other for other in self._by_topic[entry.topic] if other.id != entry.id]

    def figures_seed(self, entry: Entry) -> int:
        return figures_seed(self.seed, entry.id, None)

    def result(self) -> Result:
        by_topic: dict[str, list[Answered]] = {}
        for answered in self.answers:
            by_topic.setdefault(answered.entry.topic, []).append(answered)
        topics = [_topic_result(topic, found) for topic, found in by_topic.items()]
        topics.sort(key=lambda found: (found.correct / found.asked, found.hardest_right, found.topic))
        correct = sum(answered.correct for answered in self.answers)
        return Result(len(self.answers), correct, self.ability, tuple(topics))

    def _topics(self) -> list[str]:
        """The six with the most questions for this role, in a drawn order."""
        most = sorted(self._by_topic, key=lambda topic: (-len(self._by_topic[topic]), topic))
        chosen = most[: ITEMS // PER_TOPIC]
        self._rng.shuffle(chosen)
        return chosen

    def _wanted(self, topic: str) -> float:
        """Difficulty for the next question of a topic: the estimate, moved by what this topic has shown."""
        shown = [answered for answered in self.answers if answered.entry.topic == topic]
        if not shown:
            return self.ability
        last = shown[-1]
        return last.entry.difficulty + (1 if last.correct else -1)

    def _noise(self, entry: Entry) -> float:
        return Random(f"{self.seed}:{entry.id}").random()


def _topic_result(topic: str, found: Iterable[Answered]) -> TopicResult:
    found = list(found)
    right = [answered.entry.difficulty for answered in found if answered.correct]
    return TopicResult(topic, len(found), len(right), max(right, default=0))

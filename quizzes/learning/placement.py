"""A first estimate from twelve short questions: a starting point, not a grade.

Two questions on each of the six topics that the role is asked about most. The first has the estimated difficulty; the
second is harder or easier, depending on the first. One or two answers are weak evidence, so the result states its
counts.
"""

from dataclasses import dataclass
from random import Random

from quizzes.learning import grouped
from quizzes.learning.selection import figures_seed
from quizzes.question_bank import Bank, Entry

ITEMS, PER_TOPIC = 12, 2
LONGEST = 6.0
"""Minutes: placement should take a quarter of an hour."""
LEVELS = {"junior": 2, "mid": 3, "senior": 4, "staff": 5}
"""Level -> maximum difficulty."""
START = {"junior": 1.5, "mid": 2.0, "senior": 3.0, "staff": 3.5}
STEP = 0.5
"""Change of the estimate per answer."""
UNSUITED = ("free", "design", "code")
"""Kinds that take long or are marked by the learner."""


@dataclass(frozen=True)
class Answered:
    """An answered placement question."""

    entry: Entry
    correct: bool


@dataclass(frozen=True)
class TopicResult:
    """Result of one topic."""

    topic: str
    asked: int
    correct: int
    hardest_right: int
    """Difficulty of the hardest right answer; 0 without one."""


@dataclass(frozen=True)
class Result:
    """Result of a complete or interrupted placement."""

    answered: int
    correct: int
    difficulty: float
    """Estimated difficulty (1 to 5) at which the learner is right half of the time."""
    topics: tuple[TopicResult, ...]
    """Topics, weakest first."""

    @property
    def begin_with(self) -> str | None:
        return self.topics[0].topic if self.topics else None


class Placement:
    """Chooses each question from the answers so far. The same seed and answers give the same questions."""

    def __init__(self, bank: Bank, role: str | None, level: str | None = None, seed: int = 0) -> None:
        self.seed = seed
        self.ability = START.get(level or "", 2.0)
        self.answers: list[Answered] = []
        entries = [
            entry
            for entry in sorted(bank, key=lambda entry: entry.id)
            if (role is None or role in entry.roles)
            and entry.kind not in UNSUITED
            and entry.minutes <= LONGEST
            and not entry.needs_probes
        ]
        self._by_topic = grouped(entries, lambda entry: entry.topic)
        most = sorted(self._by_topic, key=lambda topic: (-len(self._by_topic[topic]), topic))[
            : ITEMS // PER_TOPIC
        ]
        Random(f"placement:{seed}").shuffle(most)
        self._plan = most * PER_TOPIC
        """Topic of each question: all topics once, then all again."""

    def next(self) -> Entry | None:
        """Return the next question, the same until `answer` or `skip` is called; None at the end."""
        asked = {answered.entry.id for answered in self.answers}
        turn = len(self.answers)
        if turn >= ITEMS:
            return None
        # its turn first; other topics if it has no more questions
        for topic in self._plan[turn : turn + 1] + self._plan:
            left = [entry for entry in self._by_topic[topic] if entry.id not in asked]
            if left:
                wanted = self._wanted(topic)
                noise = {entry.id: Random(f"{self.seed}:{entry.id}").random() for entry in left}
                return min(left, key=lambda e: (abs(e.difficulty - wanted), noise[e.id], e.id))
        return None

    def answer(self, entry: Entry, correct: bool) -> None:
        """Record an outcome. For a question that could not be graded, call `skip`."""
        self.answers.append(Answered(entry, correct))
        self.ability = min(max(self.ability + (STEP if correct else -STEP), 1.0), 5.0)

    def skip(self, entry: Entry) -> None:
        """Drop a question that could not be graded."""
        self._by_topic[entry.topic] = [other for other in self._by_topic[entry.topic] if other.id != entry.id]

    def figures_seed(self, entry: Entry) -> int:
        return figures_seed(self.seed, entry.id, None)

    def result(self) -> Result:
        topics = []
        for topic, answers in grouped(self.answers, lambda answered: answered.entry.topic).items():
            right = [answered.entry.difficulty for answered in answers if answered.correct]
            topics.append(TopicResult(topic, len(answers), len(right), max(right, default=0)))
        topics.sort(key=lambda result: (result.correct / result.asked, result.hardest_right, result.topic))
        correct = sum(answered.correct for answered in self.answers)
        return Result(len(self.answers), correct, self.ability, tuple(topics))

    def _wanted(self, topic: str) -> float:
        """Return the difficulty of a topic's next question: the estimate, or one step from its last question."""
        for last in reversed(self.answers):
            if last.entry.topic == topic:
                return last.entry.difficulty + (1 if last.correct else -1)
        return self.ability

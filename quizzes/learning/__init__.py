"""Review schedule, selection, placement, calibration, progress and plan, computed from the facts in `quizzes.state`.

review       ratings and cards (FSRS), replayed from the facts
selection    questions to ask now
placement    first estimate from twelve questions
calibration  confidence against outcomes
progress     per topic, and a readiness score with its formula
plan         number of new questions per day
"""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return key -> items with that key, both in order of appearance."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups

"""A cache of whole answers in front of the engine: by exact text, by normalised text, or by likeness."""

from __future__ import annotations

import re
from collections.abc import Callable

_WORD = re.compile(r"[a-z0-9]+")


def normalise(question: str) -> str:
    """Case, punctuation and blanks do not count."""
    return " ".join(_WORD.findall(question.lower()))


def likeness(a: str, b: str) -> float:
    """Jaccard: words in common over words in either."""
    first, second = set(_WORD.findall(a.lower())), set(_WORD.findall(b.lower()))
    return len(first & second) / len(first | second) if first | second else 1.0


class ResponseCache:
    """Answers by question. `threshold`: None matches the key exactly; a number takes the likest that reaches it."""

    def __init__(self, key: Callable[[str], str] = str, threshold: float | None = None) -> None:
        self.key = key
        self.threshold = threshold
        self._answers: dict[str, str] = {}

    def get(self, question: str) -> str | None:
        if self.threshold is None:
            return self._answers.get(self.key(question))
        best = max(self._answers, key=lambda known: likeness(known, question), default=None)
        if best is None or likeness(best, question) < self.threshold:
            return None
        return self._answers[best]

    def put(self, question: str, answer: str) -> None:
        self._answers[self.key(question)] = answer

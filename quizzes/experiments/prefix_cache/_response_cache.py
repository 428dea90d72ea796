"""Cache of whole answers in front of the engine: by exact text, normalised text or similarity."""

from __future__ import annotations

import re
from collections.abc import Callable

_WORD = re.compile(r"[a-z0-9]+")


def normalise(question: str) -> str:
    """Return the words of a question without case and punctuation."""
    return " ".join(_WORD.findall(question.lower()))


def likeness(a: str, b: str) -> float:
    """Return the Jaccard similarity: words in common over words in either."""
    first, second = set(_WORD.findall(a.lower())), set(_WORD.findall(b.lower()))
    return len(first & second) / len(first | second) if first | second else 1.0


class ResponseCache:
    """Answers by question. threshold: similarity that a match needs; None: an equal key."""

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

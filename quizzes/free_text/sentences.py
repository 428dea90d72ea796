"""Sentences of an answer, and the one that shares most words with a key point."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from quizzes.question import KeyPoint

_BREAK = re.compile(r"(?<=[.!?;])(?<!\bvs\.)(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bapprox\.)\s+|\n+")
_BULLET = re.compile(r"^\s*(?:[-*•]|\d{1,2}[.)])\s+")
_WORD = re.compile(r"[a-z0-9]+(?:[.'/][a-z0-9]+)*")
FUNCTION_WORDS = frozenset(
    """a about after all also although an and any are as at be because been before being below between both but by can
    could did do does done during each either else even every few for from had has have here how however i if in into
    is it its itself just less like may me might more most much must my neither no nor not now of off on once one only
    or other our out over own per rather same shall she should since so some still such than that the their them then
    there therefore these they this those though through thus till to too under unless until up upon us very was we
    well were what when where whether which while who whose why will with within without would yet you your""".split()
)
_ENDINGS = ("ations", "ation", "ings", "ing", "edly", "ed", "es", "s", "ly", "e")


@dataclass(frozen=True)
class Closest:
    """The sentence nearest to a key point. It may still be wrong."""

    sentence: str
    overlap: float
    """Shared words divided by the geometric mean of both lengths, 0 to 1."""


def sentences(text: str) -> list[str]:
    """Return the sentences in order, verbatim, without bullets."""
    parts = (_BULLET.sub("", part).strip() for part in _BREAK.split(text))
    return [sentence for sentence in parts if re.search(r"\w", sentence)]


def words(text: str) -> list[str]:
    """Return the words in lower case, in order."""
    return _WORD.findall(text.lower())


@lru_cache(maxsize=4096)  # each sentence is compared with each phrasing of each key point
def stems(text: str) -> frozenset[str]:
    """Return content words without endings: batching, batched and batches share a stem."""
    return frozenset(stem(word) for word in words(text) if word not in FUNCTION_WORDS)


def overlap(one: frozenset[str], other: frozenset[str]) -> float:
    """Return the cosine of two sets of stems."""
    return len(one & other) / math.sqrt(len(one) * len(other)) if one and other else 0.0


def nearness(sentence: str, phrasings: Iterable[str]) -> float:
    """Return the overlap with the nearest of several phrasings."""
    own = stems(sentence)
    return max((overlap(own, stems(phrasing)) for phrasing in phrasings), default=0.0)


def closest(point: KeyPoint, answer: str) -> Closest | None:
    """Return the sentence that shares most words with a phrasing of the point, right or wrong, or None."""
    phrasings = [point.say, *point.good, *point.bad]
    candidates = [Closest(sentence, nearness(sentence, phrasings)) for sentence in sentences(answer)]
    best = max(candidates, key=lambda candidate: candidate.overlap, default=None)
    return best if best is not None and best.overlap > 0 else None


def stem(word: str) -> str:
    """Return a word without its ending: share, shares and sharing have one stem."""
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 4:
            return word.removesuffix(ending)
    return word

"""Questions about an answer's text. They never affect points."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from quizzes.free_text.sentences import FUNCTION_WORDS, nearness, sentences, words
from quizzes.question import KeyPoint

LintKind = Literal["short", "long", "no_number", "no_unit", "direction", "opposite", "salad"]
LENGTH = {"free": (60, 150), "design": (100, 350)}
"""Words that fit the time in which an interviewer listens."""
MOST = 6
"""Maximum number of questions."""
UP = frozenset(
    """raise raises raising raised increase increases increased increasing higher more grow grows growing
    faster longer larger improves improve better worsens""".split()
)
DOWN = frozenset(
    """lower lowers lowered lowering reduce reduces reduced reducing decrease decreases fewer less shrink
    shrinks slower shorter smaller cut cuts hurts worse""".split()
)
KEY_TERMS = frozenset(
    """ttft itl tpot latency throughput goodput bandwidth intensity utilization utilisation occupancy concurrency memory
    waste fragmentation preemption preemptions recompute hits hit-rate batch batches queue queueing acceptance precision
    quality accuracy cost steps flops bytes traffic overhead""".split()
)
NEAR_WORDS = 3
OPPOSITE_NEARNESS = 0.5
SALAD_WORDS = 12
SALAD_FUNCTION_SHARE = 0.2
"""Ordinary prose has 35-50 % function words; a list of terms has almost none."""
_NUMBER = re.compile(r"(?<![\w.])(?P<number>\d[\d,_]*(?:\.\d+)?)(?P<rest>\s*[^\s.,;:!?)]*)")
_BARE_OK = re.compile(r"(?:19|20)\d\d$")


@dataclass(frozen=True)
class Lint:
    """A question about a part of the answer."""

    kind: LintKind
    ask: str
    quote: str = ""
    """The words of the answer in question."""


def lints(answer: str, kind: str, points: Sequence[KeyPoint] = ()) -> list[Lint]:
    """Return at most MOST questions, the most important first. points: from `scoring.key_points`."""
    first = [*_salad(answer), *_opposites(answer, points), *_numbers(answer)]
    return [*first, *_directions(answer), *_length(answer, kind)][:MOST]


def _length(answer: str, kind: str) -> list[Lint]:
    lo, hi = LENGTH.get(kind, LENGTH["free"])
    count = len(answer.split())
    if count < lo:
        return [Lint("short", f"{count} words; {lo} to {hi} are usual. Is a cause or a number missing?")]
    if count > hi:
        return [Lint("long", f"{count} words; {lo} to {hi} are usual. Which sentences could you drop?")]
    return []


def _numbers(answer: str) -> list[Lint]:
    """Ask about an answer without numbers, and about numbers without a unit."""
    if not re.search(r"\d", answer):
        ask = "The answer contains no numbers. Which size, ratio or count would make it checkable?"
        return [Lint("no_number", ask)]
    return [
        Lint("no_unit", f"{match['number']} of what? Add the unit.", sentence)
        for sentence in sentences(answer)
        for match in _NUMBER.finditer(sentence)
        if not match["rest"].strip() and not _BARE_OK.match(match["number"])
    ][:2]


def _directions(answer: str) -> list[Lint]:
    """Ask about directions (more, less, higher ...) beside a term: a swapped one still sounds right."""
    found = []
    for sentence in sentences(answer):
        heard = words(sentence)
        for at, word in enumerate(heard):
            if word not in UP and word not in DOWN:
                continue
            beside = heard[at + 1 : at + 1 + NEAR_WORDS] + heard[max(0, at - 2) : at][::-1]
            term = next((near for near in beside if near in KEY_TERMS), None)
            if term is not None:
                ask = f'You wrote "{word}" beside "{term}". Is the direction right?'
                found.append(Lint("direction", ask, sentence))
                break
    return found[:2]


def _opposites(answer: str, points: Sequence[KeyPoint]) -> list[Lint]:
    """Ask about sentences nearer to a wrong phrasing of a point than to every right one."""
    found = []
    for point in points:
        for sentence in sentences(answer):
            wrong = nearness(sentence, point.bad)
            if wrong >= OPPOSITE_NEARNESS and wrong > nearness(sentence, [point.say, *point.good]):
                found.append(Lint("opposite", "Read this sentence again: is the opposite true?", sentence))
                break
    return found[:2]


def _salad(answer: str) -> list[Lint]:
    heard = [word for word in words(answer) if not word[0].isdigit()]
    if len(heard) < SALAD_WORDS:
        return []
    share = sum(word in FUNCTION_WORDS for word in heard) / len(heard)
    if share >= SALAD_FUNCTION_SHARE:
        return []
    return [Lint("salad", "This is a list of terms. Explain in sentences how each affects the next.")]

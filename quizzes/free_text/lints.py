"""Questions about an answer's text. The answer to a list of terms is never right; the other questions cost nothing."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from quizzes.free_text.polarity import is_opposite
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
JOINED_WORDS = 20
JOINED_FUNCTION_WORDS = 5
"""A list joined by "and" and "the" has many function words, but few different ones."""
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
    asked = []
    for sentence in sentences(answer):
        heard = words(sentence)
        for at, word in enumerate(heard):
            if word not in UP and word not in DOWN:
                continue
            beside = heard[at + 1 : at + 1 + NEAR_WORDS] + heard[max(0, at - 2) : at][::-1]
            term = next((near for near in beside if near in KEY_TERMS), None)
            if term is not None:
                ask = f'You wrote "{word}" beside "{term}". Is the direction right?'
                asked.append(Lint("direction", ask, sentence))
                break
    return asked[:2]


def says_opposite(sentence: str, point: KeyPoint) -> bool:
    """Return whether a sentence turns a point around or is nearer to a wrong phrasing than to any right one."""
    wrong = nearness(sentence, point.bad)
    is_wrong = wrong >= OPPOSITE_NEARNESS and wrong > nearness(sentence, [point.say, *point.good])
    return is_wrong or is_opposite(sentence, point)


def _opposites(answer: str, points: Sequence[KeyPoint]) -> list[Lint]:
    """Ask about sentences that seem to say the opposite of a point."""
    asked = []
    for point in points:
        wrong = next((sentence for sentence in sentences(answer) if says_opposite(sentence, point)), None)
        if wrong is not None:
            asked.append(Lint("opposite", "Is the opposite of this sentence true?", wrong))
    return asked[:2]


def is_salad(answer: str) -> bool:
    """Return whether an answer is a list of terms, joined by commas or by "and"."""
    heard = [word for word in words(answer) if not word[0].isdigit()]
    joining = [word for word in heard if word in FUNCTION_WORDS]
    is_bare = len(heard) >= SALAD_WORDS and len(joining) < SALAD_FUNCTION_SHARE * len(heard)
    return is_bare or (len(heard) >= JOINED_WORDS and len(set(joining)) < JOINED_FUNCTION_WORDS)


def _salad(answer: str) -> list[Lint]:
    ask = "This is a list of terms. Explain in sentences how each affects the next."
    return [Lint("salad", ask)] if is_salad(answer) else []

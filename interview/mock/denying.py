"""Prose that denies what it says: "I would never say that 32 requests arrive", "caching must be ignored"."""

from __future__ import annotations

import re
from collections.abc import Sequence

from quizzes.free_text.sentences import closest, nearness, sentences, stems
from quizzes.question import KeyPoint

MOSTLY = 0.5
"""Share of an answer's words in denying clauses above which it denies what it says. Key points have at most 0.38."""
NEAR = 0.25
"""Nearness of a sentence and a key point from which the sentence may deny the point."""
SAME = 0.4
"""Nearness from which a sentence with a denial denies what a key point denies."""
_DENIES = re.compile(
    r"\b(?:not|no|never|neither|nor|cannot|false|wrong|untrue"
    r"|den(?:y|ies|ied|ying)|(?:ignor|refus|avoid)(?:e|s|es|ed|ing)?)\b(?! (?:know|sure))|n['’]t\b(?! know)",
    re.IGNORECASE,
)
"""Words that deny something; "I do not know" denies nothing."""
_REFUSES = re.compile(
    r"\b(?:(?:do|must|should|would|need) ?(?:not|n['’]t)|never|wrong|false|untrue"
    r"|(?:den(?:y|ies|ied|ying)|(?:ignor|refus|avoid)(?:e|s|es|ed|ing)?))\b(?! know)",
    re.IGNORECASE,
)
"""Words that deny a statement. "Without padding" and "no block is free" are parts of right ones."""
_BREAK = re.compile(
    r"[,;:.!?()](?:\s|$)|\n|\b(?:but|because|so|since|while|whereas|if|when|unless|which|or)\b", re.IGNORECASE
)
"""End of a clause. "and" continues one: "do not measure p95 and p99"."""
_STATEMENT = re.compile(
    r"\b(?:(?:never|not|n['’]t) (?:say|claim|state|think|believe|agree)|den(?:y|ied|ying)|wrong|false|untrue) that\b",
    re.IGNORECASE,
)
"""Beginning of a denial that reaches to the end of its sentence."""


def _clauses(text: str) -> list[str]:
    """Return the clauses. A statement that is denied as a whole is one, with the words that deny it."""
    found = []
    for sentence in sentences(text):
        begin = _STATEMENT.search(sentence)
        at = begin.start() if begin else len(sentence)
        found += [*_BREAK.split(sentence[:at]), sentence[at:]]
    return found


def is_denial(text: str, points: Sequence[KeyPoint] = ()) -> bool:
    """Return whether most words of a text stand in clauses that deny something.

    Sentences that deny what a key point denies, as "KV is never reused for another customer", affirm the point.
    """
    right = [each for point in points for each in (point.say, *point.good) if _DENIES.search(each)]
    num_words = num_denied = 0
    for sentence in sentences(text):
        affirms = not _STATEMENT.search(sentence) and nearness(sentence, right) >= SAME
        for clause in _clauses(sentence):
            count = len(clause.split())
            num_words += count
            num_denied += count * (not affirms and bool(_DENIES.search(clause)))
    return num_denied > MOSTLY * num_words


def denied_points(text: str, points: Sequence[KeyPoint]) -> set[str]:
    """Return the key points whose closest sentence denies most of the words that it shares with them."""
    return {
        point.id
        for point in points
        if (near := closest(point, text)) is not None and _denies(near.sentence, point)
    }


def _denies(sentence: str, point: KeyPoint) -> bool:
    """Return whether a sentence denies what a point affirms. Denying a wrong phrasing is right."""
    right = [point.say, *point.good]
    near = nearness(sentence, right)
    if near < NEAR or nearness(sentence, point.bad) > near:
        return False
    shared = stems(sentence) & {name for each in right for name in stems(each)}
    denied = shared & _denied(sentence) - {name for each in right for name in _denied(each)}
    return 2 * len(denied) > len(shared)


def _denied(text: str) -> set[str]:
    """Return the stems of the clauses that deny a statement."""
    return {name for each in _clauses(text) if _REFUSES.search(each) for name in stems(each)}

"""Key points that an answer denies, and prose that denies what it says: "I would never say that 32 requests arrive"."""

from __future__ import annotations

import re
from collections.abc import Sequence

from interview.mock.stance import Said, stances
from quizzes.free_text.sentences import nearness, sentences, stems
from quizzes.question import KeyPoint

MOSTLY = 0.5
"""Share of an answer's words in denying clauses above which it denies what it says. Key points have at most 0.38."""
NEAR = 0.25
"""Nearness of a sentence and a key point from which the sentence may deny the point."""
SAME = 0.4
"""Nearness from which a sentence with a denial denies what a key point denies."""
TOUCHES = 0.2
"""Nearness of some sentence that a point needs to be made: 97 of 100 points of labelled right answers have it."""
TELLING, WHOLE = 2, 0.8
"""Stems that only a wrong phrasing has, and the share of its stems, from which a sentence affirms it."""
OUTWEIGHS = 0.8
"""Nearness of a sentence that affirms a point, relative to that of one that denies it, from which the point is not
denied: people correct themselves."""
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
    r"\b(?:(?:never|not|n['’]t|no(?:body| one)|hardly|cannot) (?:\w+ )?"
    r"(?:say|claim|state|think|believes?|agree|accept|argue)"
    r"|den(?:y|ied|ying)|doubt|reject|dispute|refute|wrong|false|untrue|incorrect|nonsense"
    r"|(?:myth|misconception|lie|mistake)|not (?:true|right|correct|the case)) that\b",
    re.IGNORECASE,
)
"""Beginning of a denial that reaches to the end of its sentence, or to what holds instead."""
_INSTEAD = re.compile(r"[,;:]? \b(?:but|instead|rather|whereas)\b", re.IGNORECASE)


def _clauses(text: str) -> list[str]:
    """Return the clauses. A statement that is denied as a whole is one, with the words that deny it."""
    clauses = []
    for sentence in sentences(text):
        begin = _STATEMENT.search(sentence)
        at = begin.start() if begin else len(sentence)
        end = _INSTEAD.search(sentence, begin.end()) if begin else None
        to = end.start() if end else len(sentence)
        clauses += [*_BREAK.split(sentence[:at]), sentence[at:to], *_BREAK.split(sentence[to:])]
    return clauses


def is_denial(text: str, points: Sequence[KeyPoint] = ()) -> bool:
    """Return whether most words of a text stand in clauses that deny something.

    Sentences that deny what a key point denies, as "KV is never reused for another customer", affirm the point.
    """
    right = [
        phrasing for point in points for phrasing in (point.say, *point.good) if _DENIES.search(phrasing)
    ]
    num_words = num_denied = 0
    for sentence in sentences(text):
        affirms = not _STATEMENT.search(sentence) and nearness(sentence, right) >= SAME
        for clause in _clauses(sentence):
            count = len(clause.split())
            num_words += count
            num_denied += count * (not affirms and bool(_DENIES.search(clause)))
    return num_denied > MOSTLY * num_words


def denied_points(text: str, points: Sequence[KeyPoint]) -> set[str]:
    """Return the key points that a sentence denies, unless another one affirms them in about as many of their words."""
    said = stances(text)
    return {point.id for point in points if _is_denied(point, said)}


def affirmed_points(text: str, points: Sequence[KeyPoint]) -> set[str]:
    """Return the key points near which the text says something, and which it does not deny."""
    said = stances(text)
    return {
        point.id
        for point in points
        if not _is_denied(point, said)
        and _near([statement for statement in said if not _denies(statement, point)], point) >= TOUCHES
    }


def misled_points(text: str, points: Sequence[KeyPoint]) -> set[str]:
    """Return the key points of which the text affirms a wrong phrasing, alone or as a reason of the right one."""
    said = [stance.sentence for stance in stances(text) if stance.stance == "affirmed"]
    return {point.id for point in points if any(_misleads(sentence, point) for sentence in said)}


def _misleads(sentence: str, point: KeyPoint) -> bool:
    right = {name for good in (point.say, *point.good) for name in stems(good)}
    plain = stems(sentence) - _denied(sentence)
    for phrasing in point.bad:
        wrong = stems(phrasing)
        if (
            len(wrong - right) >= TELLING
            and len(plain & wrong) >= WHOLE * len(wrong)
            and wrong - right <= plain
        ):
            return True
    return False


def _is_denied(point: KeyPoint, said: Sequence[Said]) -> bool:
    denying = [statement for statement in said if _denies(statement, point)]
    near = _near(denying, point)
    others = [statement for statement in said if statement.stance == "affirmed" and statement not in denying]
    return near >= NEAR and _near(others, point) < OUTWEIGHS * near


def _near(said: Sequence[Said], point: KeyPoint) -> float:
    return max((nearness(statement.sentence, [point.say, *point.good]) for statement in said), default=0.0)


def _denies(said: Said, point: KeyPoint) -> bool:
    """Return whether a sentence denies what a point affirms. Denying a wrong phrasing is right."""
    sentence, right = said.sentence, [point.say, *point.good]
    near = nearness(sentence, right)
    if near < NEAR or nearness(sentence, point.bad) > near:
        return False
    if said.stance != "affirmed":
        return said.stance != "open"
    shared = stems(sentence) & {name for phrasing in right for name in stems(phrasing)}
    denied = shared & _denied(sentence) - {name for phrasing in right for name in _denied(phrasing)}
    return 2 * len(denied) > len(shared)


def _denied(text: str) -> set[str]:
    """Return the stems of the clauses that deny a statement."""
    return {name for clause in _clauses(text) if _REFUSES.search(clause) for name in stems(clause)}

"""Substance of prose: what remains of an answer without repetitions and without the interviewer's own words.

None of it says that an answer is right. It only finds answers that say nothing: too short, a list of terms, an echo of
the question, one sentence filled with term after term, denials, or sentences far from every key point.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Sequence, Set

from interview.mock.denying import is_denial
from quizzes.free_text.lints import is_salad
from quizzes.free_text.sentences import FUNCTION_WORDS, overlap, sentences, stems, words
from quizzes.question import KeyPoint

SHORT = 25
"""Words below which prose explains nothing."""
LEAST_SAID = 12
"""Words about the question below which prose explains nothing, whatever else it has."""
FILLER = 0.4
"""Share of words about the question below which most of an answer is filler."""
LEAST_FOR_YES = 40
"""Words of the shortest explanation on which a "yes" can rest: the fewest that are usual in any step."""
Form = tuple[str, ...]
"""Function words of a sentence, in their order."""
RUN, ECHO = 5, 0.6
"""Length of a run of words, and the share of an answer's runs above which it only repeats the question."""
FORM, TEMPLATE = 4, 8
"""Function words from which two sentences with the same ones, in the same order, have the same form, and from which the
second is a repetition whatever its other words are."""
OFTEN = 4
"""Sentences with one form from which all but the first are repetitions."""
HOLLOW = 0.75
"""Share of function words from which a sentence says too little to make a point. Ordinary prose has 35 to 50 %."""
SAME, RECENT, FEW = 0.8, 20, 4
"""Share of stems from which a sentence repeats one of the RECENT ones before it, whatever its function words are; both
have at least FEW."""
NUMBERS = 0.35
"""Share of numbers among the words of a list of numbers."""
SCRAMBLED = 0.2
"""Share of sentences in no order of English from which a text is none."""
_NO_ORDER = re.compile(
    r"\b(?:the|an?) (?:of|to|and|or|is|are|in|at|for|with|from|by|on|the|an?|as|that|it|its|if|so|but|than|not|has)\b"
    r"|\b(?:of|to|from) (?:is|are|has|of|and|or)\b|\b(?:the|an?|of|to|and|or|with|from|its|if|than)\W*$",
    re.IGNORECASE,
)
"""Pairs of function words, and ends of a sentence, that English does not have."""
ANY_HOLLOW = ("",) * TEMPLATE
"""Form of hollow sentences in a text that consists mostly of them."""
SHARED, BRIEF = 2, 3
"""Stems that a sentence about the question shares with it or with the key points; 1 if it has at most BRIEF stems."""
NEAR = 0.4
"""Overlap of a sentence and a key point from which the sentence may make the point."""


def once(text: str) -> str:
    """Return a text without the sentences that repeat an earlier one: "It is because of the X that we have a Y"."""
    parts = sentences(text)
    forms = _forms(parts)
    templates, kept = _templates(parts, forms), []
    earlier: dict[Form, list[frozenset[str]]] = {}
    seen: set[tuple[Form, frozenset[str]]] = set()
    recent: deque[frozenset[str]] = deque(maxlen=RECENT)
    for sentence, form in zip(parts, forms, strict=True):
        own, before = stems(sentence), earlier.setdefault(form, [])
        repeats = (form, own) in seen or before and form in templates or _repeats(form, own, before)
        if not repeats and not any(_is_same(own, other) for other in recent):
            kept.append(sentence)
            recent.append(own)
        before.append(own)
        seen.add((form, own))
    return " ".join(kept)


def _forms(parts: Sequence[str]) -> list[Form]:
    """Return the form of each sentence: its function words. Hollow sentences have the same form if they are most."""
    forms = [_form(sentence) for sentence in parts]
    hollow = [_is_hollow(sentence) for sentence in parts]
    if 2 * sum(hollow) <= len(parts):
        return forms
    return [ANY_HOLLOW if is_hollow else form for form, is_hollow in zip(forms, hollow, strict=True)]


def _templates(parts: Sequence[str], forms: Sequence[Form]) -> set[Form]:
    """Return the forms into which term after term was filled."""
    different = {(form, stems(sentence)) for sentence, form in zip(parts, forms, strict=True)}
    often = Counter(form for form, _ in different)
    return {
        form
        for form, count in often.items()
        if count >= (2 if len(form) >= TEMPLATE else OFTEN) and len(form) >= FORM
    }


def _form(sentence: str) -> Form:
    return tuple(word for word in words(sentence) if word in FUNCTION_WORDS)


def _is_hollow(sentence: str) -> bool:
    return len(_form(sentence)) >= HOLLOW * len(words(sentence))


def _is_same(own: frozenset[str], other: frozenset[str]) -> bool:
    return min(len(own), len(other)) >= FEW and len(own & other) >= SAME * max(len(own), len(other))


def is_scrambled(text: str) -> bool:
    """Return whether the words of many sentences stand in no order of English, or many words are numbers."""
    parts, heard = sentences(text), words(text)
    if sum(word[0].isdigit() for word in heard) > NUMBERS * len(heard):
        return True
    return sum(bool(_NO_ORDER.search(sentence)) for sentence in parts) > SCRAMBLED * len(parts)


def _repeats(form: Form, own: frozenset[str], before: Sequence[frozenset[str]]) -> bool:
    """Return whether a sentence repeats one of those with its form. Parallel sentences about different things, or two
    that share a word, do not repeat each other. before: fewer than OFTEN different ones if the form is long enough."""
    if not before or len(form) < FORM:
        return False
    shared = max(len(own & earlier) for earlier in before)
    return 2 * shared > len(own) or (shared > 0 and len(before) >= 2)


def without_filler(text: str, points: Sequence[KeyPoint], said: str) -> str:
    """Return what remains of a text without repetitions, without sentences that could answer any question, and without
    those that the interviewer said."""
    phrasings = [phrasing for point in points for phrasing in (point.say, *point.good, *point.bad)]
    known = {name for phrasing in (said, *phrasings) for name in stems(phrasing)}
    kept, heard = [], set(_runs_of_words(said))
    for sentence in sentences(once(text)):
        own_words = _without_echo(sentence, heard)
        own = stems(own_words)
        if len(own & known) >= (SHARED if len(own) > BRIEF else 1):
            kept.append(own_words)
    return " ".join(kept)


def _without_echo(sentence: str, heard: Set[tuple[str, ...]]) -> str:
    """Return a sentence, or its other words if it has runs of words that were heard."""
    runs = _runs_of_words(sentence)
    echoed = {at + offset for at, run in enumerate(runs) if run in heard for offset in range(RUN)}
    return (
        " ".join(word for at, word in enumerate(words(sentence)) if at not in echoed) if echoed else sentence
    )


def is_mostly_filler(text: str, left: int) -> bool:
    """Return whether most of a text could answer any question. left: its words without filler."""
    return left < FILLER * len(once(text).split())


def explains(text: str, left: int, points: Sequence[KeyPoint] = ()) -> bool:
    """Return whether prose has the length and the sentences of an explanation; not whether it is right. left: its
    words without filler."""
    if is_salad(text) or is_scrambled(text) or is_denial(text, points):
        return False
    return len(once(text).split()) >= SHORT and not is_mostly_filler(text, left)


def is_echo(text: str, said: str) -> bool:
    """Return whether most of a text, in runs of words, comes from what the interviewer said."""
    runs, heard = _runs_of_words(text), set(_runs_of_words(said))
    return bool(runs) and sum(run in heard for run in runs) > ECHO * len(runs)


def makes_a_point(text: str, points: Sequence[KeyPoint], said: str) -> bool:
    """Return whether some sentence comes near a key point with a word that the interviewer did not say. Hollow ones and
    templates do not count: filled with the terms of a point, they are near it."""
    if is_salad(text) or is_scrambled(text) or is_denial(text, points) or is_echo(text, said):
        return False
    parts, heard = sentences(text), stems(said)
    forms = _forms(parts)
    templates = _templates(parts, forms)
    own_words = [
        stems(sentence)
        for sentence, form in zip(parts, forms, strict=True)
        if form not in templates and not _is_hollow(sentence)
    ]
    phrasings = [stems(phrasing) for point in points for phrasing in (point.say, *point.good)]
    return any(
        overlap(own, phrasing) >= NEAR and (own & phrasing) - heard
        for own in own_words
        for phrasing in phrasings
    )


def _runs_of_words(text: str) -> list[tuple[str, ...]]:
    all_words = words(text)
    return [tuple(all_words[at : at + RUN]) for at in range(len(all_words) - RUN + 1)]

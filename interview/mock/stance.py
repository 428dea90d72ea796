"""Stance of each sentence of an answer: the candidate affirms it, denies it, withdraws it, or leaves it open.

A sentence may decide about others: "I deny all of the following", "None of this is true", "It is wrong that:" before
a list, "No, wait, that is wrong". A denial before a list ends with the list, with the paragraph, or at words such as
"what is true". Only words about truth do this: "none of these helps" denies nothing that was said.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from quizzes.free_text.sentences import sentences

Stance = Literal["affirmed", "denied", "withdrawn", "open"]
"""withdrawn: a later sentence takes it back; open: a question, or words that fit a statement and its opposite."""


def _any(*patterns: str) -> str:
    return f"(?:{'|'.join(patterns)})"


_END = r"(?=\s*(?:$|[.,:;!]|,? (?:here|at all|either|in my (?:view|opinion))\b))"
"""End of a statement about truth: "holds" at the end of a clause, not "holds blocks"."""
_TRUTH = _any(
    "true", "right", "correct", "so", "the case", "valid", "holds?", "appl(?:y|ies)", "happens?", "agree with",
    "support with", "i would say",
) + _END  # fmt: skip
_NOT = _any(
    "not", "never", "none", "neither", "nor", "nothing", "no(?:body| one)", "hardly", "cannot", "n['’]t"
)
_STATEMENTS = _any(
    "points?", "claims?", "statements?", "sentences?", "assertions?", "arguments?", "ideas?", "beliefs?", "items?",
    "lines?",
)  # fmt: skip
_OPPOSITE = r"the (?:opposite|contrary|reverse)"
_REJECT = _any(
    "deny", "denied", "disagree", "reject", "dispute", "doubt", "refute", "contradict", "refuse to"
)
_FALSE = _any(
    r"\b(?:false|untrue|incorrect|mistaken|nonsense|myths?|misconceptions?|fallac(?:y|ies))\b",
    rf"(?<!what is )(?<!things are )(?<!going )(?<!goes )(?<!went )\bwrong{_END}",
    r"\bwrong (?:that|to (?:say|think|believe|claim))\b",
    rf"\b{_NOT}\b[^.:]{{0,60}}?\b{_TRUTH}",
    rf"\bno {_STATEMENTS}\b[^.:]{{0,40}}?\b{_TRUTH}",
    rf"\bI\b[^.,:]{{0,30}}\b{_REJECT}\b",
    rf"\b{_NOT}\b (?:\w+ ){{0,2}}(?:say|claim|state|think|believe|accept|argue|maintain|agree|support)\b",
)
"""Words about a statement that say it is not true."""
_AHEAD = _any(
    r"\bfollow(?:ing|s)\b",
    r"\bbelow\b(?! (?:the|a|\d))",
    rf"\b(?:these|such|each|every|all|any|both|no) (?:\w+ )?{_STATEMENTS}\b",
    r"\b(?:all|each|any|every one|none|not one|both|neither) of (?:these|those|them)\b",
    r"\bnothing of (?:this|that|it|what)\b",
    r"\b(?:here|this) is what (?:is|would be) (?:not|untrue|false|wrong)\b",
    r"\beverything (?:that )?(?:I (?:say|write) (?:next|now|here)|comes next)\b",
)
"""Words that announce statements."""
_DENIAL, _AHEAD_OF = (
    re.compile(pattern, re.IGNORECASE) for pattern in (rf"{_FALSE}|\b{_OPPOSITE} of\b", _AHEAD)
)
LONGEST = 30
"""Words of the longest sentence that can decide about others."""
_COLON = re.compile(
    _any(
        rf"{_FALSE}[^:.]{{0,12}}:$",
        "^(?:denied|rejected|false|wrong|untrue|not true|myths?|misconceptions?):$",
    ),
    re.IGNORECASE,
)
"""A denial that ends with a colon: "It is wrong that:", "Myths:"."""
_BEFORE = r"\b(?:this|that|it|these|those|them|above|before|said|wrote)\b"
_ALL_BEFORE = re.compile(
    "^(?:(?:but|and|so|however),? )?"
    + _any(
        rf"(?:none|nothing|not (?:one|a) \w+|no (?:word|part)) (?:of |in )?(?:all )?{_BEFORE}[^.:]{{0,40}}\b{_TRUTH}",
        rf"(?:all|each|every(?:thing| \w+)?|both|what I)\b[^.:]{{0,40}}{_BEFORE}[^.:]{{0,30}}{_FALSE}",
        rf"{_OPPOSITE} of (?:all|each|every)[^.:]*{_BEFORE}[^.:]*",
        rf"I (?:\w+ ){{0,2}}(?:{_REJECT}|take back|withdraw)\b[^.:]*\b(?:all|each|every|any|both)\b[^.:]*",
        r"I (?:\w+ ){0,2}(?:take|took) (?:all|it all|everything)\b[^.:]*\bback",
    )
    + r"[^.:]{0,20}[.!]?$",
    re.IGNORECASE,
)
"""A sentence that denies all before it: "None of this is true.", "I deny all of the above."."""
_NOTHING_KNOWN = re.compile(
    r"^(?:but |and )?I (?:cannot|can['’]t|could not|do not|don['’]t|am not)\b[^.:]{0,30}\b(?:whether|if)\b[^.:]{0,20}"
    rf"{_BEFORE}[^.:]{{0,12}}\b{_TRUTH}",
    re.IGNORECASE,
)
"""A sentence that leaves all before it open: "I cannot say whether any of that is so."."""
_LAST = re.compile(
    "^(?:(?:but|and|oh|well|sorry|ah|hm+),? )*(?:"
    + _any(
        rf"(?:no(?:,? wait)?|wait|sorry|correction|scratch that){_END}",
        rf"(?:wrong|false|nonsense|never|far from it|on the contrary|not (?:so|true|right|correct|at all)){_END}",
        rf"(?:that|this|it)(?: is|['’]s| was| would be| sounds) (?:(?:\w+ )?{_FALSE}|not {_TRUTH})",
        rf"(?:that|this|it)(?: is|['’]s| was) (?:a mistake|an error|{_OPPOSITE} of the truth)",
        rf"I\b[^.:]{{0,20}}\b(?:{_REJECT}(?: with)?|not (?:agree with|believe|accept)) (?:that|this|it){_END}",
    )
    + r"[\s,.:;!]*)+",
    re.IGNORECASE,
)
"""Beginning of a sentence that takes the one before it back: "No, wait, that is wrong: it rises."."""
_TURNS = re.compile(
    "^"
    + _any(
        r"(?:but|however|instead|actually)\b",
        r"in (?:fact|reality|truth)\b",
        r"the (?:truth|fact|right|correct|real)\b",
        r"what (?:is|I|really|we)\b",
        r"(?:right|correct|true|facts?|truth)\b",
        r"my (?:own )?(?:answer|view)\b",
        r"I (?:would|hold|think|say|believe)\b(?! (?:never|not|rather not|deny))",
    ),
    re.IGNORECASE,
)
"""Beginning of a sentence that ends a denial of several ones."""
_OPEN = re.compile(
    _any(
        r"\?\W{0,5}$",
        r"\bor (?:perhaps|maybe|possibly|it (?:may|might|could))\b.{0,30}\b(?:not|other way|opposite|reverse)\b",
        r"\b(?:opposite|reverse|contrary) (?:may|might|could|can)\b",
        r"^(?:some|others|many|certain) (?:\w+ )?(?:would )?(?:say|hold|claim|think|argue|believe)\b",
        r"^(?:I have |I['’]ve )?(?:read|heard)\b.{0,20}\bthat\b",
        r"^it (?:is|was) (?:often |sometimes )?(?:said|claimed|rumoured) that\b",
    ),
    re.IGNORECASE,
)
"""A question, a statement beside its opposite, or what others say."""
_ITEM = re.compile(r"^\s*(?:[-*•]|\d{1,2}[.)]|[a-h][.)])\s+")


class Said(NamedTuple):
    """A sentence and its stance."""

    sentence: str
    stance: Stance


class _Place(NamedTuple):
    sentence: str
    paragraph: int
    is_item: bool
    is_last: bool
    """Whether its line ends with it."""


def stances(text: str) -> list[Said]:
    """Return the sentences in order, each with its stance, without words that only take the one before back."""
    places = list(_places(text))
    taken: list[Stance] = []
    scope = _Scope()
    for at, place in enumerate(places):
        sentence = place.sentence
        if scope.denies(place):
            taken.append("denied")
            continue
        taken.append("open" if _OPEN.search(sentence) else "affirmed")
        if _is_short(sentence) and _ALL_BEFORE.match(sentence):
            taken[:at] = ["denied"] * at
        elif _is_short(sentence) and _NOTHING_KNOWN.match(sentence):
            taken[:at] = ["open"] * at
        elif at and _LAST.match(sentence):
            taken[at - 1] = "withdrawn"
        scope.open_at(place)
    said = [_LAST.sub("", place.sentence) or place.sentence for place in places]
    return [Said(sentence, stance) for sentence, stance in zip(said, taken, strict=True)]


class _Scope:
    """Sentences that a denial before them reaches."""

    def __init__(self) -> None:
        self._denial: _Place | None = None
        self._has_items = False

    def open_at(self, place: _Place) -> None:
        """Begin a denial if a sentence announces statements that are not true."""
        if _announces(place.sentence) or _is_short(place.sentence) and _COLON.search(place.sentence):
            self._denial, self._has_items = place, False

    def denies(self, place: _Place) -> bool:
        """Return whether a sentence is among those denied; the first that is not ends the denial."""
        if self._denial is None:
            return False
        ends_list = self._has_items and not place.is_item
        ends_paragraph = place.paragraph != self._denial.paragraph and not (
            self._denial.is_last or place.is_item
        )
        if ends_list or ends_paragraph or _TURNS.match(place.sentence):
            self._denial = None
            return False
        self._has_items = place.is_item
        return True


def _is_short(sentence: str) -> bool:
    return len(sentence.split()) <= LONGEST


def _announces(sentence: str) -> bool:
    """Return whether a sentence denies statements behind it."""
    return _is_short(sentence) and bool(_DENIAL.search(sentence) and _AHEAD_OF.search(sentence))


def _places(text: str) -> Iterator[_Place]:
    """Yield the sentences. Words that announce statements are one of their own, up to their colon."""
    for number, paragraph in enumerate(re.split(r"\n\s*\n", text)):
        for line in paragraph.splitlines():
            is_item, of_line = bool(_ITEM.match(line)), sentences(line)
            for sentence in of_line:
                is_last = sentence is of_line[-1]
                head, colon, rest = sentence.partition(": ")
                if rest.strip() and _announces(head):
                    yield _Place(f"{head}:", number, is_item, False)
                    sentence = rest.strip()
                yield _Place(sentence, number, is_item, is_last)


def affirmed(text: str) -> str:
    """Return the sentences that a text affirms."""
    return " ".join(said.sentence for said in stances(text) if said.stance == "affirmed")

"""Options that are named by id or by the number they are shown with."""

from __future__ import annotations

import re

from quizzes.grading.parse import NOTHING, ParseError, clean, split_list


def pick(text: str, shown: list[str], *, key: str, every: bool = False, none: bool = False) -> list[str]:
    """The ids that a reply names, in its order. `shown`: all ids in the order on the screen, numbered from 1.

    every: each has to be named once, as for an order. none: "none" is a reply.
    """
    try:
        cleaned = clean(text)
    except ParseError as error:
        raise ParseError(error.what, error.next_step, key) from None
    if cleaned.lower() in NOTHING:
        if none:
            return []
        raise ParseError("none was named", _how(shown, every=every), key)
    chosen = [_one(part, shown, key, every=every) for part in _parts(cleaned, shown)]
    twice = sorted({each for each in chosen if chosen.count(each) > 1})
    if twice:
        raise ParseError(f"{_numbers(twice, shown)} named twice", _how(shown, every=every), key)
    missing = [each for each in shown if each not in chosen]
    if every and missing:
        raise ParseError(f"{_numbers(missing, shown)} not named", _how(shown, every=every), key)
    return chosen


def _numbers(ids: list[str], shown: list[str]) -> str:
    """As the screen shows them."""
    return ", ".join(str(shown.index(each) + 1) for each in ids)


def _parts(text: str, shown: list[str]) -> list[str]:
    """Its words; "bac" is three where ids are single letters."""
    if text.lower() in {each.lower() for each in shown} and not text.isdecimal():
        return [text]
    parts = [part for piece in split_list(text) for part in piece.split() if part.lower() != "and"]
    if len(parts) == 1 and re.fullmatch(r"[A-Za-z]+", parts[0]) and all(len(each) == 1 for each in shown):
        return list(parts[0])
    return parts


def _one(part: str, shown: list[str], key: str, *, every: bool) -> str:
    word = part.lower().strip("().: ")
    if word.isdecimal() and 1 <= int(word) <= len(shown):  # what is on the screen, even if an id is a number
        return shown[int(word) - 1]
    for each in shown:
        if each.lower() == word:
            return each
    raise ParseError(f"{part[:40]!r} is no option", _how(shown, every=every), key)


def _how(shown: list[str], *, every: bool) -> str:
    if every:
        return f"type all of 1 to {len(shown)} in order: {', '.join(map(str, range(len(shown), 0, -1)))}"
    return f"type numbers from 1 to {len(shown)}, or {', '.join(shown)}"


def picked_share(chosen: list[str], right: list[str]) -> float:
    """Right options named, less wrong ones: naming everything earns nothing to speak of."""
    if not right:
        return float(not chosen)
    hits = len(set(chosen) & set(right))
    wrong = len(set(chosen) - set(right))
    return max(0.0, (hits - wrong) / len(right))


def adjacent_share(given: list[str], right: list[str]) -> float:
    """1 for the right order, else the share of neighbours that are neighbours there, in that order."""
    if given == right:
        return 1.0
    pairs = set(zip(right, right[1:], strict=False))
    kept = sum(pair in pairs for pair in zip(given, given[1:], strict=False))
    return kept / len(pairs) if pairs else 0.0

"""Options, named by id or by their number on the screen."""

import re

from quizzes.grading.parse import NOTHING, ParseError, clean, split_list


def pick(text: str, shown: list[str], *, key: str, every: bool = False, none: bool = False) -> list[str]:
    """Return the ids that a reply names, in its order. shown: all ids in the order on the screen, numbered from 1.

    every: require each id exactly once, as for an order. none: accept "none".
    """
    how = f"type numbers from 1 to {len(shown)}"
    if every:
        how = f"type all of 1 to {len(shown)} in order: {', '.join(map(str, range(len(shown), 0, -1)))}"
    try:
        cleaned = clean(text)
    except ParseError as error:
        raise ParseError(error.what, error.next_step, key) from None
    if cleaned.lower() in NOTHING:
        if none:
            return []
        raise ParseError("you named no option", how, key)
    chosen = []
    for part in _parts(cleaned, shown):
        if (named := _one(part, shown)) is None:
            raise ParseError(f"{part[:40]!r} is not an option", how, key)
        chosen.append(named)
    twice = sorted({option for option in chosen if chosen.count(option) > 1})
    missing = [option for option in shown if every and option not in chosen]
    for wrong, problem in ((twice, "named twice"), (missing, "not named")):
        if wrong:
            numbers = ", ".join(str(shown.index(option) + 1) for option in wrong)
            raise ParseError(f"{numbers} {problem}", how, key)
    return chosen


def _parts(text: str, shown: list[str]) -> list[str]:
    """Split a reply into words; "bac" is three words if all ids are single letters."""
    if text.lower() in {option.lower() for option in shown} and not text.isdecimal():
        return [text]
    parts = [part for piece in split_list(text) for part in piece.split() if part.lower() != "and"]
    if len(parts) == 1 and re.fullmatch(r"[A-Za-z]+", parts[0]) and all(len(option) == 1 for option in shown):
        return list(parts[0])
    return parts


def _one(part: str, shown: list[str]) -> str | None:
    word = part.lower().strip("().: ")
    if word.isdecimal() and 1 <= int(word) <= len(shown):  # what is on the screen, even if an id is a number
        return shown[int(word) - 1]
    return next((option for option in shown if option.lower() == word), None)


def picked_share(chosen: list[str], right: list[str]) -> float:
    """Return the share of right options minus wrong ones, so that naming all options earns little."""
    if not right:
        return float(not chosen)
    hits, wrong = len(set(chosen) & set(right)), len(set(chosen) - set(right))
    return max(0.0, (hits - wrong) / len(right))


def adjacent_share(given: list[str], right: list[str]) -> float:
    """Return 1 for the right order, else the share of adjacent pairs that are adjacent in the right order."""
    if given == right:
        return 1.0
    pairs = set(zip(right, right[1:], strict=False))
    kept = sum(pair in pairs for pair in zip(given, given[1:], strict=False))
    return kept / len(pairs) if pairs else 0.0

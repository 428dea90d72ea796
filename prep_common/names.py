"""Message for a name that is not among the known ones: the closest one, and where the others are."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from prep_common.text import shown

LONGEST = 100
"""Characters of a name that may be a misspelling; the time to compare grows with the square."""


def unknown_name(
    problem: str, name: object, known: Iterable[str], where: str = "", *, cutoff: float = 0.6
) -> str:
    """Return `problem 'name'; did you mean 'closest'?`, and `where` to find all of them.

    problem: start of the message, such as "unknown model". where: replaces the list of all names, which follows if no
    name is close and `where` is empty.
    """
    names = [str(entry) for entry in known]
    close = closest(name, names, cutoff=cutoff)
    hint = None if close is None else f"did you mean {close!r}?"
    rest = where or ("" if hint else f"known: {', '.join(names) or 'none'}")
    return f"{problem} {shown(name, LONGEST)}; {' '.join(filter(None, [hint, rest]))}"


def closest(name: object, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the known name that is most similar to `name`, or begins with it, or contains it, ignoring case.

    None: there is none, or it is the name itself. cutoff: least similarity, 0 to 1; units, which are short, need less.
    """
    lower = {entry.lower(): entry for entry in reversed(list(known))}
    word = str(name).lower()
    if len(word) > LONGEST:
        return None
    longer = [candidate for candidate in lower if len(word) > 2 and candidate.startswith(word)]
    around = [candidate for candidate in lower if len(word) > 2 and word in candidate]
    matches = get_close_matches(word, lower, n=1, cutoff=cutoff) or longer[-1:] or around[-1:]
    return lower[matches[0]] if matches and lower[matches[0]] != name else None

"""Numbers as text for people: sizes, durations, counts. Texts that are still to be written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

GIB = 1 << 30
UNFILLED = re.compile(r"FILL IN:? ([^\n\"]+)")
"""A place that `prep new` leaves to the author."""
MOST_SHOWN = 60
"""Characters of a value in a message."""

PLAIN = {
    "·": "-", "…": "...", "–": "-", "—": "-", "─": "-", "→": "->", "←": "<-", "×": "x", "≈": "~", "≤": "<=", "≥": ">=",
    "µ": "u", "μ": "u", "²": "2", "“": '"', "”": '"', "’": "'", "█": "#", "░": "-", "✓": "ok", "✗": "x",
}  # fmt: skip
"""Replacements for characters that a stream or a font lacks; other characters become "?"."""


def gib(num_bytes: float, digits: int = 1) -> str:
    """Return 14.9 GiB."""
    return f"{num_bytes / GIB:,.{digits}f} GiB"


def duration(seconds: float) -> str:
    """Return a measured time with three digits or so: 850 µs, 12.3 ms, 1.23 s, 245 s."""
    if seconds >= 100:
        return f"{seconds:,.0f} s"
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1000 * seconds:.1f} ms" if seconds >= 0.001 else f"{1e6 * seconds:.0f} µs"


def rough_duration(seconds: float) -> str:
    """Return an expected time: 40 s, 3 min, 1.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def figure(value: object) -> str:
    """Return a value in four digits, or in all digits before the point: 0.0123, 158.1, 30,571; yes, no for a bool."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def plain_value(value: object) -> str:
    """Return a value for reading: as `figure`, lists without quotes, - for None."""
    if value is None:
        return "-"
    if isinstance(value, list):
        return f"[{', '.join(map(plain_value, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {plain_value(item)}" for key, item in value.items()) + "}"
    return figure(value)


def shown(value: object, most: int = MOST_SHOWN) -> str:
    """Return the beginning of `repr(value)`, at most so many characters, in a time that does not depend on its size."""
    text = ""
    for piece in _pieces(value, most):
        text += piece
        if len(text) > most:
            return text[: most - 1] + "…"
    return text


def _pieces(value: object, most: int) -> Iterator[str]:
    """Yield the text of a value in pieces of bounded length."""
    if isinstance(value, str | bytes):
        yield repr(value[: most + 1])
    elif isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 4 * most:
        yield f"an integer of {value.bit_length():,} bits"  # Python refuses to write more than 4,300 digits
    elif isinstance(value, list | tuple):
        yield "[" if isinstance(value, list) else "("
        for number, item in enumerate(value):
            yield ", " if number else ""
            yield from _pieces(item, most)
        yield "]" if isinstance(value, list) else ",)" if len(value) == 1 else ")"
    elif isinstance(value, Mapping):
        for number, (key, inner) in enumerate(value.items()):
            yield ", " if number else "{"
            yield from _pieces(key, most)
            yield ": "
            yield from _pieces(inner, most)
        yield "}" if value else "{}"
    else:
        yield repr(value)


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return "1 block", "2 entries", "1,200 blocks". plural: of an irregular noun, such as "matrices"."""
    return f"{number:,} {noun if number == 1 else plural or _plural(noun)}"


def _plural(noun: str) -> str:
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "x", "z", "ch", "sh")) else "s")


def join_and(words: Sequence[str]) -> str:
    """Return "a", "a and b", "a, b and c"."""
    return _join(words, " and ")


def join_or(words: Sequence[str]) -> str:
    """Return "a", "a or b", "a, b or c"."""
    return _join(words, " or ")


def _join(words: Sequence[str], last: str) -> str:
    return last.join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def unfilled(text: str) -> list[str]:
    """Return what an author of a skeleton has not written yet: "fill in the title"."""
    return [f"fill in {what.strip()}" for what in UNFILLED.findall(text)]

r"""Look-aheads at the start of a pattern, which intersect or subtract.

    ^(?=.*[A-Z])(?!abc)\w{8}$        \w{8}  and  .*[A-Z].*  but not  abc.*

A look-ahead elsewhere depends on where the rest begins, and is refused with the other syntax that is not regular.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine.core.grammar_protocol import GrammarError


@dataclass(frozen=True)
class LookAhead:
    """A pattern that must begin a text, or must not if `holds` is false."""

    pattern: str  # With ^, and with $ if it is about the whole text
    holds: bool


def look_aheads(pattern: str) -> tuple[list[LookAhead], str]:
    """Return the look-aheads after ^, and the pattern without them."""
    looks: list[LookAhead] = []
    at = 1
    while pattern.startswith("^") and pattern.startswith(("(?=", "(?!"), at):
        end = next((i for i, sign, depth in _signs(pattern, at) if sign == ")" and depth == 0), None)
        if end is None:
            raise GrammarError(
                f"regex {pattern!r}: this parenthesis is never closed; close it (character {at})"
            )
        inner = pattern[at + 3 : end].removeprefix("^")
        to_end = inner.endswith("$") and not inner.endswith("\\$")
        if to_end and any(sign == "|" and depth == 0 for _, sign, depth in _signs(inner, 0)):
            raise GrammarError(
                f"regex {pattern!r}: $ ends one alternative of a look-ahead; put these in a group"
            )
        looks.append(LookAhead(f"^(?:{inner[:-1]})$" if to_end else f"^(?:{inner})", pattern[at + 2] == "="))
        at = end + 1
    if not looks:
        return [], pattern
    rest = pattern[at:]
    if any(sign == "|" and depth == 0 for _, sign, depth in _signs(rest, 0)):
        raise GrammarError(f"regex {pattern!r}: a look-ahead before alternatives; put these in a group")
    return looks, f"^{rest}"


def _signs(pattern: str, start: int) -> Iterator[tuple[int, str, int]]:
    """Return the parentheses and bars outside of classes and escapes, with the depth outside of them."""
    depth, is_class, at = 0, False, start
    while at < len(pattern):
        sign = pattern[at]
        if sign == "\\":
            at += 2
            continue
        if is_class:
            is_class = sign != "]"
        elif sign == "[":
            is_class = True
        elif sign in "()|":
            depth -= sign == ")"
            yield at, sign, depth
            depth += sign == "("
        at += 1

r"""Parse regular expressions to a tree.

    "[0-9]+(?:px|em)?"      Sequence
                            ├── Repeat 1..
                            │   └── Characters 0-9
                            └── Repeat 0..1
                                └── Choice
                                    ├── Sequence p x
                                    └── Sequence e m

The syntax is that of Python's `re`, as far as it describes regular languages; the whole text must match, as with
`re.fullmatch`. \d, \w and \s are ASCII. Back references, look-around and \b are rejected with their place, because an
automaton cannot match them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from engine.core.grammar_protocol import GrammarError

Range = tuple[int, int]  # First and last code point
LAST_CODE_POINT = 0x10FFFF
MAX_REPEAT = 100_000
"""Highest count in {m,n}. Larger trees are refused by the automaton, which counts its states."""


@dataclass(frozen=True, slots=True)
class Characters:
    """One character out of sorted, disjoint ranges. Without ranges nothing matches."""

    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Sequence:
    """A sequence of nodes; empty: the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several nodes."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A node `least` to `most` times; None: unbounded."""

    body: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Graph:
    """An automaton whose moves are nodes, for what a tree would have to repeat; state 0 is its start.

    properties a and b, both optional      0 --a--> 2 --", "--> 1 --b--> 3        ends: 0, 2, 3
                                           0 --------b--------------------> 3
    """

    moves: tuple[tuple[tuple[Node, int], ...], ...]
    """Moves of each state: (node, next state)."""
    ends: frozenset[int]


@dataclass(frozen=True, slots=True)
class Rule:
    """The node that a grammar has under a name, which may contain itself."""

    name: str


Node = Characters | Sequence | Choice | Repeat | Graph | Rule
NEVER = Choice(())
"""Matches no text."""
EMPTY = Sequence(())
"""Matches the empty text."""


@dataclass(frozen=True)
class Dialect:
    r"""Characters that \d, \w, \s, their complements and the dot match."""

    classes: Mapping[str, tuple[Range, ...]]
    classes_in_negated: Mapping[str, tuple[Range, ...]]  # Inside [^...]
    any_character: tuple[Range, ...]
    end: Node = EMPTY  # What may follow where $ is


def parse(pattern: str, *, anywhere: bool = False, dialect: Dialect | None = None) -> Node:
    """Return the tree of a pattern. Raises GrammarError with the place of an error.

    anywhere: a text matches if some part of it does, as with `re.search`; ^ and $ still hold its ends.
    dialect: by default ASCII classes.
    """
    parser = _Parser(pattern, anywhere, dialect or ASCII)
    tree = parser.choice()
    if parser.at < len(pattern):
        raise parser.error("this parenthesis was never opened; write \\) for the character")
    return tree


def literal(text: str) -> Node:
    """Return the tree of a literal text."""
    characters = tuple(Characters(((ord(character), ord(character)),)) for character in text)
    return characters[0] if len(characters) == 1 else Sequence(characters)


def optional(node: Node) -> Node:
    return Repeat(node, 0, 1)


def merged(ranges: list[Range]) -> tuple[Range, ...]:
    """Return the characters as sorted, disjoint ranges."""
    result: list[Range] = []
    for first, last in sorted(ranges):
        if result and first <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(last, result[-1][1]))
        else:
            result.append((first, last))
    return tuple(result)


def complement(ranges: tuple[Range, ...]) -> tuple[Range, ...]:
    """Return all other characters."""
    begins = [0, *(last + 1 for _, last in ranges)]
    ends = [*(first - 1 for first, _ in ranges), LAST_CODE_POINT]
    return tuple((begin, end) for begin, end in zip(begins, ends, strict=True) if begin <= end)


def _of(text: str) -> tuple[Range, ...]:
    return merged([(ord(character), ord(character)) for character in text])


_DIGIT = ((48, 57),)
_WORD = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE = _of(" \t\n\r\f\v")
_CLASSES = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_CLASSES |= {name.upper(): complement(ranges) for name, ranges in _CLASSES.items()}
_CONTROLS = {"0": "\0", "n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a"}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_COUNTS = re.compile(r"\{(?!\})(\d*)(,?)(\d*)\}", re.ASCII)
ASCII = Dialect(_CLASSES, _CLASSES, complement(_of("\n")))
_ANYTHING = Repeat(Characters(((0, LAST_CODE_POINT),)), 0, None)


class _Parser:
    """Recursive descent: choice > sequence > repeat > atom, one method each."""

    def __init__(self, pattern: str, anywhere: bool, dialect: Dialect) -> None:
        self.pattern = pattern
        self.dialect = dialect
        self.anywhere = anywhere
        self.at = 0
        self.depth = 0

    def choice(self) -> Node:
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        is_outermost = self.depth == 0
        if is_outermost and not self._take("^") and self.anywhere:
            parts.append(_ANYTHING)
        while self._next() not in ("", "|", ")"):
            if is_outermost and self._next() == "$" and self._next(1) in ("", "|"):
                self.at += 1
                if self.anywhere and self.dialect.end != EMPTY:
                    parts.append(self.dialect.end)
                break
            parts.append(self._repeat())
        else:
            if is_outermost and self.anywhere:
                parts.append(_ANYTHING)
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _repeat(self) -> Node:
        body = self._atom()
        bounds = self._bounds()
        if bounds is None:
            return body
        if self._take("+"):
            raise self.error("possessive repeats are not supported; leave the second + out", -1)
        self._take("?")  # lazy: it matches the same texts
        if self._next() in ("*", "+", "?") or _COUNTS.match(self.pattern, self.at):
            raise self.error("two repeats in a row; put the first in a group")
        return Repeat(body, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        """Parse the repeat after an atom; None if there is none."""
        simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if self._next() in simple:
            self.at += 1
            return simple[self.pattern[self.at - 1]]
        match = _COUNTS.match(self.pattern, self.at)
        if match is None:
            return None  # a literal brace, as in `re`
        least = int(match[1] or 0)
        most = least if not match[2] else int(match[3]) if match[3] else None
        if max(least, most or 0) > MAX_REPEAT:
            raise self.error(f"no more than {MAX_REPEAT} repeats are supported; lower the count")
        if most is not None and most < least:
            raise self.error("the highest number of repeats is below the lowest; swap them")
        self.at = match.end()
        return least, most

    def _atom(self) -> Node:
        character = self.pattern[self.at]
        if character in "*+?" or _COUNTS.match(self.pattern, self.at):
            raise self.error(f"nothing to repeat; write \\{character} for the character")
        if character in "^$":
            raise self.error(
                "anchors are supported only around the whole pattern, which always matches all; leave it out"
            )
        self.at += 1
        match character:
            case "(":
                return self._group()
            case "[":
                return Characters(self._class())
            case ".":
                return Characters(self.dialect.any_character)
            case "\\":
                return Characters(self._escape(self.dialect.classes, in_class=False))
        return Characters(((ord(character), ord(character)),))

    def _group(self) -> Node:
        start = self.at - 1
        if self._take("?") and not self._take(":"):
            named = re.compile(r"P?<\w+>").match(self.pattern, self.at)
            if named is None:
                raise self.error("only groups (...), (?:...) and (?<name>...) are supported", -2)
            self.at = named.end()
        self.depth += 1
        if self.depth > 100:
            raise self.error("groups are nested more than 100 deep; use fewer")
        body = self.choice()
        self.depth -= 1
        if not self._take(")"):
            self.at = start
            raise self.error("this parenthesis is never closed; write \\( for the character")
        return body

    def _class(self) -> tuple[Range, ...]:
        """Parse [...] after its opening bracket."""
        start = self.at - 1
        is_negated = self._take("^")
        ranges: list[Range] = []
        is_first = True
        classes = self.dialect.classes_in_negated if is_negated else self.dialect.classes
        while is_first or self._next() != "]":
            if not self._next():
                self.at = start
                raise self.error("this class is never closed; write \\[ for the character")
            is_first = False
            begin = self._class_member(classes)
            if self._next() != "-" or self._next(1) in ("", "]"):
                ranges += begin
                continue
            self.at += 1
            (low, low_last), *more = begin
            (high, high_last), *others = self._class_member(classes)
            if more or others or low != low_last or high != high_last or high < low:
                raise self.error("this is not a range of characters; put the lower first, or write \\-", -1)
            ranges.append((low, high))
        self.at += 1
        return complement(merged(ranges)) if is_negated else merged(ranges)

    def _class_member(self, classes: Mapping[str, tuple[Range, ...]]) -> tuple[Range, ...]:
        character = self._next()
        if not character:
            raise self.error("this class is never closed; write \\[ for the character", -1)
        self.at += 1
        return (
            self._escape(classes, in_class=True) if character == "\\" else ((ord(character), ord(character)),)
        )

    def _escape(self, classes: Mapping[str, tuple[Range, ...]], *, in_class: bool) -> tuple[Range, ...]:
        """Parse an escape after its backslash."""
        character = self._next()
        if not character:
            raise self.error("a backslash at the end escapes nothing; write two for the character", -1)
        self.at += 1
        if character in classes:
            return classes[character]
        if character in _CONTROLS or (in_class and character == "b"):
            return _of(_CONTROLS.get(character, "\b"))
        if num_digits := _HEX_DIGITS.get(character):
            digits = self.pattern[self.at : self.at + num_digits]
            if not re.fullmatch(f"[0-9a-fA-F]{{{num_digits}}}", digits) or int(digits, 16) > LAST_CODE_POINT:
                raise self.error(
                    f"expected {num_digits} hex digits of a character, as in \\x41, \\u00e9 or \\U0001f600",
                    -2,
                )
            self.at += num_digits
            return _of(chr(int(digits, 16)))
        if character.isascii() and character.isalnum():
            fix = "write the characters as a class [...]" if character in "pP" else "leave it out"
            raise self.error(
                f"\\{character} is not supported: it looks around or back, or is unknown; {fix}", -2
            )
        return _of(character)

    def _next(self, offset: int = 0) -> str:
        """Return the character that is read next; empty at the end."""
        return self.pattern[self.at + offset : self.at + offset + 1]

    def _take(self, character: str) -> bool:
        if is_next := self._next() == character:
            self.at += 1
        return is_next

    def error(self, what: str, offset: int = 0) -> GrammarError:
        place = max(0, self.at + offset)
        shown = self.pattern if len(self.pattern) <= 60 else self.pattern[max(0, place - 30) : place + 30]
        return GrammarError(f"regex {shown!r}: {what} (character {place})")

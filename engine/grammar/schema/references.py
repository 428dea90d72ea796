r"""URIs and IRIs (RFC 3986 and RFC 3987), without a limit of characters and with one.

An automaton that counts every character of a URI has about 20 states for each, and a library needs minutes for a large
limit. A limit is therefore counted in blocks of 14 to 16 characters, which all places of a part share:

    https://ann@host.example/a/long/path?q#f          limit 256: 16 blocks
    scheme-> user -> host ---> path ----> query -> fragment
    1 block   1       1          1          1        1            a part of n characters: up to n // 14 + 1 blocks

A block ends at its 14th character, or up to two characters later, after an escape (`%20`). Below `LEAST_IN_BLOCKS`
every text of at most `MOST_COUNTED` characters matches as well; above it the blocks hold all of these.
"""

from __future__ import annotations

from functools import lru_cache

from engine.grammar.language import Language
from engine.grammar.regex import EMPTY, Choice, Graph, Node, Rule, parse
from engine.grammar.rules import Rules

_HEX = "[0-9a-fA-F]"
_PERCENT = f"%{_HEX}{{2}}"
_PLANES = "".join(
    f"\\U{plane:04x}0000-\\U{plane:04x}fffd" if plane < 14 else "\\U000e1000-\\U000efffd"
    for plane in range(1, 15)
)
UCS = rf"\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef{_PLANES}"
PRIVATE = r"\ue000-\uf8ff\U000f0000-\U000ffffd\U00100000-\U0010fffd"

BLOCK, FULL = 16, 14
"""Characters that a block counts as, and the fewest that fill it."""
MOST_COUNTED, LEAST_IN_BLOCKS = 127, 256
"""Limits up to which every character is counted, and from which on only blocks are."""
MOST = {"uri": 1_024, "uri-reference": 1_024, "iri": 512, "iri-reference": 512}
"""Limits that a larger one counts as. A character beyond ASCII needs many states of bytes."""
_MOST_BLOCKS = {"user": 14, "host": 30}  # others: all
_START, _END = 0, 1


def _unreserved(more: str) -> str:
    return rf"a-zA-Z0-9._~!$&'()*+,;=\-{more}"


def references(more: str, private: str, brackets: str, *, is_short: bool = False) -> tuple[str, str]:
    """Return absolute and relative references. more: characters beyond ASCII; private: more of them in a query.

    brackets: addresses in brackets. is_short: without them, with a scheme and a port as blocks have them.
    """
    unreserved = _unreserved(more)
    segment = rf"(?:[{unreserved}:@]|{_PERCENT})"
    path = rf"(?:[{unreserved}:@/]|{_PERCENT})*"
    no_colon = rf"(?:[{unreserved}@]|{_PERCENT})"
    host = rf"(?:[{unreserved}]|{_PERCENT})*"
    if not is_short:
        host = rf"(?:\[(?:{brackets}|[vV]{_HEX}+\.[a-zA-Z0-9._~!$&'()*+,;=:-]+)\]|{host})"
    port, scheme = ("[0-9]{0,5}", "[a-zA-Z0-9+.-]{0,26}") if is_short else ("[0-9]*", "[a-zA-Z0-9+.-]*")
    authority = rf"//(?:(?:[{unreserved}:]|{_PERCENT})*@)?{host}(?::{port})?(?:/{path})?"
    absolute = rf"/(?:{segment}{path})?"
    query = rf"(?:\?(?:[{unreserved}:@/?{private}]|{_PERCENT})*)?(?:#(?:[{unreserved}:@/?]|{_PERCENT})*)?"
    whole = rf"[a-zA-Z]{scheme}:(?:{authority}|{absolute}|{segment}{path})?{query}"
    return whole, rf"(?:{authority}|{absolute}|{no_colon}+(?:/{path})?)?{query}"


@lru_cache(maxsize=8)
def countable(name: str) -> Node:
    """Return the texts of a format whose characters an automaton can count."""
    more, private = (UCS, PRIVATE) if name.startswith("iri") else ("", "")
    whole, relative = references(more, private, "", is_short=True)
    return parse(f"(?:{whole}|{relative})" if name.endswith("reference") else whole)


def is_in_blocks(name: str, least: int, most: int) -> bool:
    """Whether `limited` has the texts of a format of `least` to `most` characters."""
    shortest = 1 if name.endswith("reference") else 2
    return name in MOST and least <= shortest and most > MOST_COUNTED


@lru_cache(maxsize=64)
def limited(name: str, least: int, most: int) -> Node:
    """Return texts of a format of at most `most` characters, above MOST_COUNTED. The node names rules of `rules`."""
    blocks = _Blocks(name, min(most, MOST[name]) // BLOCK, allows_empty=not least).graph()
    if most >= LEAST_IN_BLOCKS:
        return blocks
    counted = Language.of(countable(name)).minimal().of_length(least, MOST_COUNTED)
    return Choice((counted.node(), blocks))


@lru_cache(maxsize=1)
def rules() -> Rules:
    """Return a full block and a shorter one of every part."""
    blocks: Rules = {}
    for kind, more, private in (("uri", "", ""), ("iri", UCS, PRIVATE)):
        extra = {
            "user": ":", "host": "", "first": "@", "path": ":@/", "query": ":@/?" + private, "fragment": ":@/?"
        }  # fmt: skip
        for part, characters in extra.items():
            character = parse(f"[{_unreserved(more)}{characters}]")
            blocks[f"{kind}_{part}_full"] = _block(character, FULL, BLOCK, frozenset(range(FULL, BLOCK + 1)))
            blocks[f"{kind}_{part}_rest"] = _block(character, FULL - 1, FULL - 1, frozenset(range(FULL)))
    return blocks


def _block(character: Node, full: int, most: int, ends: frozenset[int]) -> Node:
    """Return characters and escapes up to a count. State n: after n characters; the others: inside an escape."""
    percent, digit = parse("%"), parse(_HEX)
    moves: list[list[tuple[Node, int]]] = [[] for _ in range(most + 1)]
    for count in range(full):
        moves[count].append((character, count + 1))
        if count + 3 <= most:
            moves[count].append((percent, len(moves)))
            moves += [[(digit, len(moves) + 1)], [(digit, count + 3)]]
    return Graph(tuple(map(tuple, moves)), ends)


class _Blocks:
    """Graph of a format: a state per part and number of blocks before it."""

    def __init__(self, name: str, num_blocks: int, *, allows_empty: bool) -> None:
        self._kind = name[:3]
        self._is_relative = name.endswith("reference")
        self._num_blocks = num_blocks
        self._allows_empty = allows_empty and self._is_relative
        self._more = _unreserved(UCS if self._kind == "iri" else "")
        self._moves: list[list[tuple[Node, int]]] = [[], []]
        self._ends = {_END}
        self._states: dict[tuple[str, int], int] = {}

    def graph(self) -> Node:
        for scheme, used in (("[a-zA-Z][a-zA-Z0-9+.-]{0,10}:", 1), ("[a-zA-Z][a-zA-Z0-9+.-]{11,26}:", 2)):
            self._begin(scheme, used)
        if self._is_relative:
            self._begin("", 1)
            self._move(_START, f"[{self._more}@]|{_PERCENT}", "first", 1)
        if self._allows_empty:
            self._ends.add(_START)
        return Graph(tuple(map(tuple, self._moves)), frozenset(self._ends))

    def _begin(self, scheme: str, used: int) -> None:
        """Add what may follow a scheme, or begin a relative reference."""
        after = len(self._moves)
        self._moves.append([])
        self._moves[_START].append((parse(scheme) if scheme else EMPTY, after))
        for part in ("user", "host"):
            self._move(after, "//", part, used)
        self._move(after, f"/?(?:[{self._more}:@]|{_PERCENT})" if scheme else f"/(?:[{self._more}:@]|{_PERCENT})",
                   "path", used)  # fmt: skip
        self._move(after, r"/?\?", "query", used)
        self._move(after, "/?#", "fragment", used)
        self._moves[after].append((parse("/?") if scheme else parse("/"), _END))

    def _move(self, state: int, separator: str, part: str, used: int) -> None:
        if used <= self._num_blocks:
            self._moves[state].append((parse(separator), self._state(part, used)))

    def _state(self, part: str, used: int) -> int:
        """Return the state at the start of a block of a part, after so many blocks."""
        if (part, used) in self._states:
            return self._states[part, used]
        state = self._states[part, used] = len(self._moves)
        self._moves.append([])
        if used == self._num_blocks:
            if part != "user":
                self._ends.add(state)
            return state
        if used < _MOST_BLOCKS.get(part, self._num_blocks):
            full = self._state(part, used + 1)
            self._moves[state].append((Rule(f"{self._kind}_{part}_full"), full))
        over = len(self._moves)  # the part ends in this block
        self._moves.append([])
        self._moves[state].append((Rule(f"{self._kind}_{part}_rest"), over))
        if part == "user":
            self._move(over, "@", "host", used + 1)
            return state
        self._moves[over].append((EMPTY, _END))
        self._leave(over, part, "", used + 1)
        if part == "host" and used + 2 <= self._num_blocks:
            self._moves[over].append((parse(":[0-9]{0,5}"), _END))
            self._leave(over, part, ":[0-9]{0,5}", used + 2)
        return state

    def _leave(self, over: int, part: str, port: str, used: int) -> None:
        """Add the moves from the end of a part to others."""
        if part in ("host", "first"):
            self._move(over, f"{port}/", "path", used)
        if part in ("host", "first", "path"):
            self._move(over, rf"{port}\?", "query", used)
        if part != "fragment":
            self._move(over, f"{port}#", "fragment", used)

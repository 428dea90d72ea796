"""Texts of objects: the listed properties in their order, then other members.

A state of the graph is (next property, members that count towards the least, members in all):

    {a: optional, b: required}      (0,0,0) --a--> (1,1,1) --", "--> . --b--> (2,2,2)
                                    (0,0,0) ----------> (1,0,0) -------b--> (2,1,1)

Names of other members may repeat in the text, and a reader keeps the last of them: so all of them together count as
one towards `minProperties`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

from engine.grammar.language import ANY_TEXT, Language
from engine.grammar.regex import EMPTY, NEVER, Choice, Graph, Node, Sequence, literal
from engine.grammar.schema.dialects import NARROW, WIDE
from engine.grammar.schema.layout import Layout
from engine.grammar.schema.places import UnsupportedError
from engine.grammar.schema.shapes import Members, Object, Places, together
from engine.grammar.schema.strings import ANY_STRING, found_by, in_quotes, quoted

MAX_PATTERNS = 5
"""Patterns of names in one object; each set of them is a kind of name."""
MAX_GRAPH = 50_000
"""States of one object or array."""


@dataclass(frozen=True)
class Member:
    """A member of an object as a node of `"name": value`."""

    node: Node
    is_required: bool = True


def values_of(shape: Object, name: str) -> Places:
    """Return the schemas of the member that has a name."""
    return together(*(members.value for members in shape.members if _applies(members, name)))


def object_node(
    shape: Object,
    path: str,
    layout: Layout,
    value: Callable[[Places], Node],
    is_impossible: Callable[[Places], bool],
    names: Language | None,
    *,
    is_closed: bool,
) -> Node:
    """Return the texts of an object.

    value: the node of a value that satisfies schemas. is_impossible: whether none does. names: the names that
    `propertyNames` allows. is_closed: no others than the listed properties where the schema does not say.
    """
    members = []
    for name in shape.names:
        schemas = values_of(shape, name)
        is_allowed = not is_impossible(schemas) and (names is None or name in names)
        if is_allowed:
            node = Sequence((quoted(name), layout.colon, value(schemas)))
            members.append(Member(node, name in shape.required))
        elif name in shape.required:
            return NEVER
    others: list[Node] = []
    if not (is_closed and members and not shape.says_others and len(members) >= shape.least):
        others = [
            Sequence((key, layout.colon, value(schemas)))
            for key, schemas in _others(shape, path, names)
            if not is_impossible(schemas)
        ]
    if shape.least > len(members) and not others:
        return NEVER
    if shape.least > len(members) + 1:
        raise UnsupportedError(
            path,
            "minProperties",
            "members without a property of their own may repeat, so one of them counts; list the properties",
        )
    return layout.enclosed("{", _body(members, others, shape, path, layout), "}")


def is_never(schemas: Places) -> bool:
    """Whether one of the schemas is false."""
    return any(place.schema is False for place in schemas)


def _applies(members: Members, name: str) -> bool:
    names = members.names
    is_named = name in names.names or any(name in pattern_of(*pattern) for pattern in names.patterns)
    return is_named is not names.inverted


@lru_cache(maxsize=256)
def pattern_of(pattern: str, path: str, *, widely: bool = False) -> Language:
    """Return the texts in which a pattern finds something."""
    return Language.of(found_by(pattern, path, WIDE if widely else NARROW))


def _others(shape: Object, path: str, names: Language | None) -> Iterator[tuple[Node, Places]]:
    """Return the other names, by the patterns that find them, with the schemas of their values."""
    patterns = list(dict.fromkeys(pattern for members in shape.members for pattern in members.names.patterns))
    if len(patterns) > MAX_PATTERNS:
        why = f"{len(patterns)} patterns for names of one object, the maximum is {MAX_PATTERNS}; join some with |"
        raise UnsupportedError(path, "patternProperties", why)
    listed = Language.of(Choice(tuple(map(literal, shape.names))))
    for size in range(len(patterns) + 1):
        for matching in combinations(patterns, size):
            schemas = together(*(m.value for m in shape.members if _finds(m, matching)))
            if is_never(schemas):
                continue
            if not patterns and not shape.names and names is None:
                yield ANY_STRING, schemas
                continue
            language = (names or ANY_TEXT) - listed
            for pattern in patterns:
                if pattern in matching:
                    language &= pattern_of(*pattern)
                else:
                    language -= pattern_of(*pattern, widely=True)
            if not language.is_empty():
                yield in_quotes(language.node()), schemas


def _finds(members: Members, finders: tuple[tuple[str, str], ...]) -> bool:
    """Whether an entry names the members that exactly these patterns find and that are not listed."""
    return any(pattern in finders for pattern in members.names.patterns) is not members.names.inverted


def _body(members: list[Member], others: list[Node], shape: Object, path: str, layout: Layout) -> Node:
    if not members and not others:
        return EMPTY if not shape.least else NEVER
    other = others[0] if len(others) == 1 else Choice(tuple(others))
    states: dict[tuple[int, int, int, bool], int] = {(0, 0, 0, False): 0}
    moves: list[list[tuple[Node, int]]] = [[]]
    ends: set[int] = set()
    todo = list(states)

    def number(state: tuple[int, int, int, bool]) -> int:
        if state not in states:
            states[state] = len(moves)
            moves.append([])
            todo.append(state)
        return states[state]

    written: dict[tuple[int, int, int, bool], int] = {}  # States before a member, after its comma

    def write(state: int, after: tuple[int, int, int, bool], node: Node, is_first: bool) -> None:
        key = (*after[:3], node is other)
        if key not in written:
            written[key] = len(moves)
            moves.append([])
            moves[written[key]].append((node, number(after)))
        moves[state].append((EMPTY if is_first else layout.comma, written[key]))

    for state in todo:  # grows
        index, counted, total, had_other = state
        here = states[state]
        if len(moves) > MAX_GRAPH:
            keyword = "minProperties" if shape.most is None else "maxProperties"
            why = f"counting {len(members):,} properties takes more than {MAX_GRAPH:,} states; leave {keyword} out"
            raise UnsupportedError(path, keyword, why)
        more = total + 1 if shape.most is not None else 1
        is_full = shape.most is not None and total >= shape.most
        if index < len(members):
            if not members[index].is_required:
                moves[here].append((EMPTY, number((index + 1, counted, total, False))))
            if not is_full:
                after = (index + 1, min(counted + 1, shape.least), more, False)
                write(here, after, members[index].node, total == 0)
            continue
        if counted >= shape.least:
            ends.add(here)
        if others and not is_full:
            after = (index, counted if had_other else min(counted + 1, shape.least), more, True)
            write(here, after, other, total == 0)
    return Graph(tuple(tuple(row) for row in moves), frozenset(ends))

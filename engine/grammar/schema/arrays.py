"""Texts of arrays.

Items that only have to satisfy a schema each are a sequence. `contains` counts, so its states are (items, matching
items); `uniqueItems` remembers, so it needs items of few possible values and its states are (items, values used).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from engine.grammar.regex import EMPTY, NEVER, Graph, Node, Repeat, Sequence, optional
from engine.grammar.schema.layout import Layout
from engine.grammar.schema.objects import MAX_GRAPH, is_never
from engine.grammar.schema.places import UnsupportedError
from engine.grammar.schema.shapes import Array, Places, together

MAX_VALUES = 8
"""Different values of unique items: each set of them is a state."""
Moves = list[tuple[Node, Any]]


def array_node(
    shape: Array,
    path: str,
    layout: Layout,
    value: Callable[[Places], Node],
    constants: Callable[[Places], dict[str, Node] | None],
) -> Node:
    """Return the texts of an array.

    value: the node of a value that satisfies schemas. constants: the nodes of all such values, or None.
    """
    most = shape.most
    for index, item in enumerate([*shape.firsts, shape.rest]):
        if is_never(item):  # the array ends before it
            most = index if most is None else min(most, index)
            break
    if most is not None and shape.least > most:
        return NEVER
    contains = [c for c in shape.contains if c.least or c.most is not None]
    is_unique = shape.is_unique and (most is None or most > 1)
    if not contains and not is_unique:
        return layout.enclosed("[", _listed(shape, most, layout, value), "]")
    if is_unique and (contains or most is None and constants(shape.rest) is None):
        why = "its items would have to be compared; leave it out, or give them an enum of 8 values"
        raise UnsupportedError(path, "uniqueItems", why)
    if is_unique:
        body = _unique(shape, path, most, layout, constants)
    else:
        body = _containing(shape, path, most, layout, value)
    return layout.enclosed("[", body, "]")


def _at(shape: Array, index: int) -> Places:
    return shape.firsts[index] if index < len(shape.firsts) else shape.rest


def _listed(shape: Array, most: int | None, layout: Layout, value: Callable[[Places], Node]) -> Node:
    firsts = [value(item) for item in shape.firsts[:most]]
    num_more = None if most is None else most - len(firsts)
    body: Node = EMPTY
    if num_more != 0:
        rest = value(shape.rest)
        if not firsts:
            if most == 0:
                return EMPTY
            if most is None and shape.least <= 1:
                return layout.several(rest) if shape.least else optional(layout.several(rest))
            more = Repeat(
                Sequence((layout.comma, rest)), max(0, shape.least - 1), None if most is None else most - 1
            )
            listed = Sequence((rest, more))
            return listed if shape.least else optional(listed)
        body = Repeat(Sequence((layout.comma, rest)), max(0, shape.least - len(firsts)), num_more)
    for index in reversed(range(len(firsts))):  # the array may end among the first items, from `least` on
        part = Sequence((*((layout.comma,) if index else ()), firsts[index], body))
        body = part if index < shape.least else optional(part)
    return body


def _containing(
    shape: Array, path: str, most: int | None, layout: Layout, value: Callable[[Places], Node]
) -> Node:
    """Return the items of an array, counting those that `contains` describes."""
    if len(shape.contains) > 1:
        raise UnsupportedError(path, "contains", "more than one at once; leave all but one out")
    contains = shape.contains[0]
    cap = contains.least if contains.most is None else contains.most
    num_counted = max(len(shape.firsts), shape.least) if most is None else most
    other = contains.item.made("(other)", {"not": contains.item.schema})

    def leave(state: Any) -> Moves:
        index, count = state
        if most is not None and index >= most:
            return []
        item = _at(shape, index)
        after = min(index + 1, max(num_counted, 1))
        moves: Moves = []
        if contains.most is None:
            moves.append((value(together(item, (contains.item,))), (after, min(count + 1, cap))))
            moves.append((value(item), (after, count)))
        else:
            if count < contains.most:
                moves.append((value(together(item, (contains.item,))), (after, count + 1)))
            moves.append((value(together(item, (other,))), (after, count)))
        return moves

    def is_end(state: Any) -> bool:
        index, count = state
        return index >= shape.least and count >= contains.least

    return _graph((0, 0), leave, is_end, lambda state: state[0] == 0, path, "contains", layout)


def _unique(
    shape: Array,
    path: str,
    most: int | None,
    layout: Layout,
    constants: Callable[[Places], dict[str, Node] | None],
) -> Node:
    """Return the items of an array in which no value repeats."""
    last = len(shape.firsts) if most is None else min(most, len(shape.firsts) + 1)
    known = []
    for index in range(last + (most is None)):
        values = constants(_at(shape, index))
        if values is None or len(values) > MAX_VALUES:
            why = f"its items would have to be compared; leave it out, or give them an enum of {MAX_VALUES} values"
            raise UnsupportedError(path, "uniqueItems", why)
        known.append(values)

    def leave(state: Any) -> Moves:
        index, used = state
        if most is not None and index >= most:
            return []
        values = known[min(index, len(known) - 1)]
        return [(node, (index + 1, used | {name})) for name, node in values.items() if name not in used]

    start: tuple[int, frozenset[Hashable]] = (0, frozenset())
    return _graph(
        start, leave, lambda s: s[0] >= shape.least, lambda s: s[0] == 0, path, "uniqueItems", layout
    )


def _graph(
    start: Any,
    leave: Callable[[Any], Moves],
    is_end: Callable[[Any], bool],
    is_first: Callable[[Any], bool],
    path: str,
    keyword: str,
    layout: Layout,
) -> Node:
    """Return the graph of the states reached from `start`, with a comma before every item but the first."""
    numbers = {start: 0}
    states = [start]
    rows = []
    for state in states:  # grows
        row = []
        for node, target in leave(state):
            if target not in numbers:
                numbers[target] = len(states)
                states.append(target)
                if len(states) > MAX_GRAPH:
                    raise UnsupportedError(
                        path, keyword, f"it needs more than {MAX_GRAPH:,} states; lower the counts"
                    )
            item = node if is_first(state) else Sequence((layout.comma, node))
            row.append((item, numbers[target]))
        rows.append(tuple(row))
    ends = frozenset(number for state, number in numbers.items() if is_end(state))
    return Graph(tuple(rows), ends)

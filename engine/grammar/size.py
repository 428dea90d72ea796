"""Size of the automaton of a tree, counted before it is built.

    (a?){5000}      states 15,001      positions 5,000      may be empty      run 5,000

A run is the positions that a text may skip without a character. A state of the automaton holds all of them, so a long
run costs as much in every state as a long pattern costs once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from engine.core.grammar_protocol import GrammarError
from engine.grammar.regex import EMPTY, Characters, Choice, Graph, Node, Repeat, Rule, Sequence
from engine.grammar.rules import Rules
from engine.grammar.utf8 import Chain, utf8_chains

MAX_NFA_STATES = 200_000
MAX_RUN = 1_000
MAX_RANGES = 100_000
"""Ranges of characters in all automata that a schema needs for its strings."""


@dataclass(frozen=True, slots=True)
class Size:
    """States that a node adds to an NFA, its characters, whether it matches the empty text, and its longest run."""

    states: int
    positions: int
    is_empty: bool = False
    run: int = 0


class Sizes:
    """Sizes of nodes, each computed once. rules: those that the nodes name."""

    def __init__(self, rules: Rules | None = None, *, of_bytes: bool = True) -> None:
        self._rules = rules or {}
        self._of_bytes = of_bytes
        self._known: dict[int, Size] = {}

    def of(self, node: Node) -> Size:
        known = self._known.get(id(node))
        if known is None:
            known = self._known[id(node)] = self._measured(node)
        return known

    def _measured(self, node: Node) -> Size:
        match node:
            case Characters():
                return Size(1 + (num_inner_states(node.ranges) if self._of_bytes else 0), 1)
            case Sequence():
                return self._sequence([self.of(part) for part in node.parts])
            case Choice():
                options = [self.of(option) for option in node.options]
                return Size(
                    1 + sum(1 + option.states for option in options),
                    sum(option.positions for option in options),
                    any(option.is_empty for option in options),
                    max((option.run for option in options), default=0),
                )
            case Repeat():
                return self._repeat(node, self.of(node.body))
            case Graph():
                return self._graph(node)
            case Rule():
                return self.of(self._rules[node.name])

    @staticmethod
    def _sequence(parts: list[Size]) -> Size:
        run = longest = 0
        for part in parts:
            run = run + max(1, part.run) if part.is_empty else 0
            longest = max(longest, run, part.run)
        return Size(
            sum(part.states for part in parts),
            sum(part.positions for part in parts),
            all(part.is_empty for part in parts),
            longest,
        )

    @staticmethod
    def _repeat(node: Repeat, body: Size) -> Size:
        num_copies = max(node.least, node.most or 1)
        num_optional = 1 if node.most is None else node.most - node.least
        run = max(1, body.run)
        if body.is_empty and num_copies > 1:
            run = num_copies * body.positions
        states = node.least * body.states + 1 + num_optional * (body.states + 1)
        return Size(states, num_copies * body.positions, node.least == 0 or body.is_empty, run)

    def _graph(self, graph: Graph) -> Size:
        states, positions, run = len(graph.moves) + 1, 0, 0
        for node in (node for moves in graph.moves for node, _ in moves if node != EMPTY):
            size = self.of(node)
            states += size.states + (-1 if isinstance(node, Characters) else 1)
            positions += size.positions
            run = max(run, size.run)
        return Size(states, positions, 0 in graph.ends, run)


@lru_cache(maxsize=4096)
def chains_of(ranges: tuple[tuple[int, int], ...]) -> tuple[Chain, ...]:
    """Return the UTF-8 encodings of the characters of a class."""
    return tuple(chain for first, last in ranges for chain in utf8_chains(first, last))


def num_inner_states(ranges: tuple[tuple[int, int], ...]) -> int:
    """Return the states between the bytes of a class's characters."""
    return len({chain[index:] for chain in chains_of(ranges) for index in range(1, len(chain))})


def check_size(tree: Node, *, of_bytes: bool = True) -> None:
    """Raise GrammarError if the automaton of a tree is too large to build."""
    size = Sizes(of_bytes=of_bytes).of(tree)
    if size.states > MAX_NFA_STATES:
        raise GrammarError(f"it repeats too much: {too_large(size.states)}; lower the counts in {{m,n}}")
    _check_run(size)


def check_run(tree: Node) -> None:
    """Raise GrammarError if a tree repeats what may be empty too often."""
    _check_run(Sizes(of_bytes=False).of(tree))


def num_ranges(node: Node) -> int:
    """Return the ranges of characters that the automata in a node have, each written once."""
    match node:
        case Characters():
            return len(node.ranges)
        case Graph():
            return sum(num_ranges(inner) for moves in node.moves for inner, _ in moves)
        case Sequence():
            return sum(map(num_ranges, node.parts))
        case Choice():
            return sum(map(num_ranges, node.options))
        case Repeat():
            return num_ranges(node.body)
    return 0


def too_large(num_states: int) -> str:
    return f"it needs {num_states:,} states, the maximum is {MAX_NFA_STATES:,}"


def _check_run(size: Size) -> None:
    if size.run > MAX_RUN:
        raise GrammarError(
            f"it repeats what may be empty over {size.run:,} characters, the maximum is {MAX_RUN:,}; leave the inner "
            "? or * out: a{0,5000} matches what (a?){5000} does"
        )

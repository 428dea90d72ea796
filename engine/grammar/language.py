"""Sets of texts that can be intersected and subtracted: automata over characters.

    "a+" and at most 2 characters        a+      0 -a-> 1 -a-> 1          both    (0,0) -a-> (1,1) -a-> (1,2)
                                         .{0,2}  0 ---> 1 ---> 2

A regular expression has no "and" and no "not", its automaton has: a state of the result is a pair of states.

Source: Rabin and Scott 1959 (product construction).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from itertools import pairwise
from typing import TypeVar

from engine.core.grammar_protocol import GrammarError
from engine.grammar.dfa import NFA, reached
from engine.grammar.regex import LAST_CODE_POINT, NEVER, Characters, Graph, Node, merged

MAX_STATES = 20_000
MAX_MEMBERS = 500_000  # States of the NFA in all states of an automaton
MAX_STEPS = 100_000  # Of `minimal`
State = TypeVar("State", bound=Hashable)
Edge = tuple[int, int, int]  # First and last character, next state


class Language:
    """A deterministic automaton over characters. State 0 is the start; a missing move rejects."""

    def __init__(self, edges: list[list[Edge]], ends: set[int]) -> None:
        self.edges = edges
        self.ends = ends

    @classmethod
    def of(cls, tree: Node) -> Language:
        """Return the texts that a tree matches. Raises GrammarError if that takes too many states."""
        nfa = NFA(tree, of_bytes=False)
        num_members = 0

        def closure(states: Iterable[int]) -> frozenset[int]:
            nonlocal num_members
            members = nfa.closure(states)
            num_members += len(members)
            if num_members > MAX_MEMBERS:
                raise GrammarError(
                    f"its states have more than {MAX_MEMBERS:,} positions in all: too much of it can overlap; "
                    "lower the counts in {m,n}"
                )
            return members

        def leave(states: frozenset[int]) -> list[tuple[int, int, frozenset[int]]]:
            moves = _apart([edge for state in states for edge in nfa.edges[state]])
            return [(first, last, closure(targets)) for first, last, targets in moves]

        return _explored(closure([0]), leave, lambda states: nfa.end in states)

    def __contains__(self, text: str) -> bool:
        state = 0
        for character in map(ord, text):
            for first, last, target in self.edges[state]:
                if first <= character <= last:
                    state = target
                    break
            else:
                return False
        return state in self.ends

    def __and__(self, other: Language) -> Language:
        return self._combined(other, lambda is_first, is_second: is_first and is_second)

    def __or__(self, other: Language) -> Language:
        return self._combined(other, lambda is_first, is_second: is_first or is_second)

    def __sub__(self, other: Language) -> Language:
        return self._combined(other, lambda is_first, is_second: is_first and not is_second)

    def is_empty(self) -> bool:
        targets = [[target for _, _, target in edges] for edges in self.edges]
        return not reached([0], targets) & self.ends

    def of_length(self, least: int, most: int | None) -> Language:
        """Return the texts of `least` to `most` characters."""
        enough = least if most is None else most

        def leave(place: tuple[int, int]) -> list[tuple[int, int, tuple[int, int]]]:
            state, count = place
            if count == most:
                return []
            after = min(count + 1, enough)
            return [(first, last, (target, after)) for first, last, target in self.edges[state]]

        return _explored((0, 0), leave, lambda place: place[0] in self.ends and place[1] >= least)

    def minimal(self) -> Language:
        """Return the automaton of the same texts with the fewest states; itself if that takes too long.

        Two states are one unless some text ends from one of them only. Source: Moore 1956.
        """
        alive = self._alive()
        if 0 not in alive:
            return Language([[]], set())
        group: dict[int, int] = {state: int(state in self.ends) for state in alive}
        num_groups = num_steps = 0
        while len(set(group.values())) > num_groups:
            num_groups = len(set(group.values()))
            num_steps += len(alive)
            if num_steps > MAX_STEPS:
                return self
            numbers: dict[Hashable, int] = {}
            group = {
                state: numbers.setdefault((group[state], self._moves_by(group, state)), len(numbers))
                for state in sorted(alive)
            }
        edges = {group[state]: list(self._moves_by(group, state)) for state in alive}
        return Language(
            [edges[number] for number in range(num_groups)], {group[s] for s in self.ends & alive}
        )

    def _moves_by(self, group: dict[int, int], state: int) -> tuple[Edge, ...]:
        """Return the moves of a state to groups, as disjoint ranges as large as possible."""
        ranges: dict[int, list[tuple[int, int]]] = {}
        for first, last, target in self.edges[state]:
            if target in group:
                ranges.setdefault(group[target], []).append((first, last))
        return tuple(
            (first, last, target) for target in sorted(ranges) for first, last in merged(ranges[target])
        )

    def _alive(self) -> set[int]:
        """Return the states that lead to an end."""
        sources: list[list[int]] = [[] for _ in self.edges]
        for state, edges in enumerate(self.edges):
            for _, _, target in edges:
                sources[target].append(state)
        return reached(self.ends, sources)

    def longest(self) -> int | None:
        """Return the number of characters of the longest text, at most; None if there is no longest."""
        num_left = [0] * len(self.edges)
        for edges in self.edges:
            for _, _, target in edges:
                num_left[target] += 1
        length, todo, num_done = [0] * len(self.edges), [0] if num_left[0] == 0 else [], 0
        while todo:  # a state after all that lead to it
            num_done += 1
            state = todo.pop()
            for _, _, target in self.edges[state]:
                length[target] = max(length[target], length[state] + 1)
                num_left[target] -= 1
                if num_left[target] == 0:
                    todo.append(target)
        return max(length) if num_done == len(self.edges) else None

    def node(self) -> Node:
        """Return a node that matches the same texts."""
        alive = self._alive()
        if 0 not in alive:
            return NEVER
        number = {state: index for index, state in enumerate(sorted(alive))}
        moves = []
        for state in sorted(alive):
            ranges: dict[int, list[tuple[int, int]]] = {}
            for first, last, target in self.edges[state]:
                if target in alive:
                    ranges.setdefault(number[target], []).append((first, last))
            moves.append(tuple((Characters(merged(r)), target) for target, r in ranges.items()))
        return Graph(tuple(moves), frozenset(number[state] for state in self.ends & alive))

    def _combined(self, other: Language, keep: Callable[[bool, bool], bool]) -> Language:
        """Return the texts for which `keep` holds of (in this one, in the other)."""
        Pair = tuple[int | None, int | None]  # None: this language rejects whatever comes

        def leave(pair: Pair) -> list[tuple[int, int, Pair]]:
            mine, others = (
                [] if state is None else language.edges[state]
                for state, language in zip(pair, (self, other), strict=True)
            )
            marked = [(f, last, (0, t)) for f, last, t in mine] + [(f, last, (1, t)) for f, last, t in others]
            moves: list[tuple[int, int, Pair]] = []
            for first, last, targets in _apart(marked):
                of = dict(targets)
                after = of.get(0), of.get(1)
                if keep(after[0] is not None, after[1] is not None) or keep(after[0] is not None, False):
                    moves.append((first, last, after))
            return moves

        start: Pair = (0, 0)
        return _explored(start, leave, lambda pair: keep(pair[0] in self.ends, pair[1] in other.ends))


ANY_TEXT = Language([[(0, LAST_CODE_POINT, 0)]], {0})


def _explored(
    start: State, leave: Callable[[State], list[tuple[int, int, State]]], is_end: Callable[[State], bool]
) -> Language:
    """Return the automaton of all states that are reached from `start`, which may be any hashable values."""
    numbers = {start: 0}
    states = [start]
    edges: list[list[Edge]] = []
    for state in states:  # grows
        row = []
        for first, last, target in leave(state):
            if target not in numbers:
                numbers[target] = len(states)
                states.append(target)
                if len(states) > MAX_STATES:
                    raise GrammarError(
                        f"its texts need an automaton of more than {MAX_STATES:,} states; make it shorter"
                    )
            row.append((first, last, numbers[target]))
        edges.append(row)
    return Language(edges, {number for state, number in numbers.items() if is_end(state)})


def _apart(
    edges: list[tuple[int, int, State]],
) -> list[tuple[int, int, frozenset[State]]]:
    """Return disjoint ranges, each with the set of targets that its characters lead to."""
    changes: dict[int, list[tuple[int, State]]] = {}  # (+1 or -1, target) at each border
    for first, last, target in edges:
        changes.setdefault(first, []).append((1, target))
        changes.setdefault(last + 1, []).append((-1, target))
    counts: dict[State, int] = {}
    ranges = []
    for begin, end in pairwise(sorted(changes)):
        for change, target in changes[begin]:
            counts[target] = counts.get(target, 0) + change
        if targets := frozenset(target for target, count in counts.items() if count):
            ranges.append((begin, end - 1, targets))
    return ranges

r"""Automaton over bytes for a regular expression.

    tree --Thompson--> NFA: a few states for every part of the pattern, several active at once
         --subsets---> DFA: one state per set of NFA states that can be reached by the same bytes

       "(ab|ac)d"        NFA   0 -a-> 1 -b-> 2 -d-> 5        DFA   0 -a-> {1,3} -b-> {2} -d-> {5}
                               0 -a-> 3 -c-> 4 -d-> 5                       \--c-> {4} -d-> {5}

It reads bytes, not characters, because a token may end in the middle of a character. A character beyond ASCII becomes
a chain of its UTF-8 bytes.

DFA states are built when they are first left: a pattern such as "(a|b)*a(a|b){30}" has 2^30 states, of which an output
visits a few. Parts of the NFA that cannot reach the end are removed first, so every possible step can be completed.

All requests with one pattern share its DFA. When its table is full, all states are dropped and built again as texts
reach them, so no text takes room from another, and none is refused: a mask whose states do not fit is made in parts. A
state's number ends with the table; its place, the set of its NFA states, stays valid.

Sources: Thompson 1968 (regex to NFA), Rabin and Scott 1959 (subsets), RE2 (states on demand, dropped when full).
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np

from engine.core.grammar_protocol import GrammarError
from engine.grammar.regex import EMPTY, Characters, Choice, Graph, Node, Repeat, Sequence
from engine.grammar.size import chains_of, check_size
from engine.grammar.utf8 import Chain

MAX_DFA_STATES = 100_000  # States in the table at once
MAX_MEMBERS = 2_000_000  # NFA states in all sets of the table together
DEAD, START = 0, 1  # States of every DFA: the dead one, and the one before the first byte
Place = bytes
"""The NFA states of a DFA state as sorted integers, packed. The dead state's place is empty."""
Found = TypeVar("Found")


class TableFullError(GrammarError):
    """The table has no room for another state."""


class NFA:
    """NFA built from a tree. States are numbers; 0 is the start."""

    def __init__(self, tree: Node, *, of_bytes: bool = True) -> None:
        """of_bytes: the alphabet is bytes, else characters. Raises GrammarError if it is too large."""
        check_size(tree, of_bytes=of_bytes)
        self.edges: list[list[tuple[int, int, int]]] = []
        """Moves of each state: (first byte, last byte, next state)."""
        self.free_moves: list[list[int]] = []  # Epsilon moves of each state
        self._of_bytes = of_bytes
        self.end = self._add(tree, self._state())
        self.is_empty = not self._cut_what_never_ends()
        """Whether no text matches."""
        self._lasting = {state for state, edges in enumerate(self.edges) if edges} | {self.end}

    def _state(self) -> int:
        self.edges.append([])
        self.free_moves.append([])
        return len(self.edges) - 1

    def _add(self, node: Node, start: int) -> int:
        """Add states and moves for `node` from `start`; return the state after it."""
        if isinstance(node, Characters):
            end = self._state()
            self._add_characters(node, start, end)
            return end
        if isinstance(node, Sequence):
            for part in node.parts:
                start = self._add(part, start)
            return start
        if isinstance(node, Choice):
            end = self._state()
            for option in node.options:
                self.free_moves[self._add(option, self._state_behind(start))].append(end)
            return end
        if isinstance(node, Graph):
            return self._add_graph(node, start)
        assert isinstance(node, Repeat), "rules are replaced by their nodes before"
        return self._add_repeat(node, start)

    def _add_characters(self, node: Characters, start: int, end: int) -> None:
        if not self._of_bytes:
            self.edges[start] += [(first, last, end) for first, last in node.ranges]
            return
        before: dict[Chain, int] = {(): end}  # States before the same bytes are one
        for chain in chains_of(node.ranges):
            for index in reversed(range(1, len(chain))):
                if chain[index:] not in before:
                    before[chain[index:]] = self._state()
                    self.edges[-1].append((*chain[index], before[chain[index + 1 :]]))
            self.edges[start].append((*chain[0], before[chain[1:]]))

    def _add_graph(self, graph: Graph, start: int) -> int:
        states = [self._state_behind(start), *(self._state() for _ in graph.moves[1:])]
        for state, moves in zip(states, graph.moves, strict=True):
            for node, target in moves:
                if isinstance(node, Characters):
                    self._add_characters(node, state, states[target])
                elif node == EMPTY:
                    self.free_moves[state].append(states[target])
                else:
                    self.free_moves[self._add(node, self._state_behind(state))].append(states[target])
        end = self._state()
        for state in graph.ends:
            self.free_moves[states[state]].append(end)
        return end

    def _add_repeat(self, node: Repeat, start: int) -> int:
        for _ in range(node.least):
            start = self._add(node.body, start)
        end = self._state()
        if node.most is None:
            loop = self._state_behind(start)
            self.free_moves[self._add(node.body, loop)].append(loop)
            self.free_moves[loop].append(end)
            return end
        for _ in range(node.most - node.least):
            self.free_moves[start].append(end)
            start = self._add(node.body, self._state_behind(start))
        self.free_moves[start].append(end)
        return end

    def _state_behind(self, start: int) -> int:
        """Add a new state for a part that others must not enter half-way."""
        state = self._state()
        self.free_moves[start].append(state)
        return state

    def _cut_what_never_ends(self) -> bool:
        """Drop moves to states from which the end cannot be reached. Returns whether the start reaches it."""
        sources: list[list[int]] = [[] for _ in self.edges]
        for state, edges in enumerate(self.edges):
            for target in (*(target for _, _, target in edges), *self.free_moves[state]):
                sources[target].append(state)
        alive = reached([self.end], sources)
        self.free_moves = [[target for target in moves if target in alive] for moves in self.free_moves]
        self.edges = [
            [(low, high, self._behind(target)) for low, high, target in edges if target in alive]
            for edges in self.edges
        ]
        return 0 in alive

    def _behind(self, state: int) -> int:
        """Return the state that a state leads to at once: the ends of a choice's options become one state."""
        while state != self.end and len(self.free_moves[state]) == 1 and not self.edges[state]:
            [state] = self.free_moves[state]
        return state

    def closure(self, states: Iterable[int]) -> frozenset[int]:
        """Return what these states reach without reading, without the states that have no moves of their own."""
        return frozenset(self._lasting & reached(states, self.free_moves))


def reached(starts: Iterable[int], moves: list[list[int]]) -> set[int]:
    """Return the states that some states reach over any number of moves."""
    todo = list(starts)
    seen = set(todo)
    for state in todo:
        for target in moves[state]:
            if target not in seen:
                seen.add(target)
                todo.append(target)
    return seen


class DFA:
    """DFA with states built on demand.

    Numbers of states are valid until the table is dropped, which only `run`, `after` and `matches` do.
    """

    def __init__(self, tree: Node) -> None:
        self._nfa = nfa = NFA(tree)
        if nfa.is_empty:
            raise GrammarError("the pattern matches no text at all, so no output could ever satisfy it")
        self.class_of_byte = _byte_classes(nfa)
        """uint8 [256]: class of each byte; bytes that no edge distinguishes share a class and a column of the table."""
        self._class_of_byte: list[int] = self.class_of_byte.tolist()
        self._num_classes = max(self._class_of_byte) + 1
        self.start: Place = _packed(nfa.closure([0]))
        """Place before the first byte."""
        self._may_overflow = False  # In a single step, whose states are few
        self._empty_table()

    def _empty_table(self) -> None:
        """Keep only DEAD and START."""
        self._table = np.zeros((64, self._num_classes), np.int32)
        self._is_known = np.zeros(64, bool)
        self._is_known[DEAD] = True
        self._places: list[Place] = [b""]
        self._number_of: dict[Place, int] = {b"": DEAD}
        self._targets: dict[frozenset[int], int] = {frozenset(): DEAD}
        self._num_members = 0
        self._number(self.start)  # START

    @property
    def num_states(self) -> int:
        """Number of states in the table, the dead one included."""
        return len(self._places)

    def run(self, place: Place, work: Callable[[int], Found]) -> Found:
        """Return what `work` finds from the state of a place.

        If the table fills up, it is dropped and the work done again. Raises TableFullError if the work alone fills it,
        which depends on no other text.
        """
        try:
            return work(self._number(place))
        except TableFullError:
            self._empty_table()
        return work(self._number(place))

    def after(self, place: Place, text: bytes) -> Place:
        """Return the place after some bytes; an empty one if no continuation matches. The table has room for a step."""
        for byte in text:
            try:
                place = self._place_after(place, byte)
            except TableFullError:
                self._empty_table()
                self._may_overflow = True
                try:
                    place = self._place_after(place, byte)
                finally:
                    self._may_overflow = False
        return place

    def _place_after(self, place: Place, byte: int) -> Place:
        return self._places[self.step(self._number(place), byte)]

    def matches(self, text: bytes) -> bool:
        """Whether a whole text is a match."""
        return self.is_end(self.after(self.start, text))

    def is_accepting(self, state: int) -> bool:
        """Whether the text read so far is a whole match."""
        return self.is_end(self._places[state])

    def is_end(self, place: Place) -> bool:
        """Whether the text before a place is a whole match."""
        return self._nfa.end in array("i", place)

    def step(self, state: int, byte: int) -> int:
        """Return the state after a byte; DEAD if no continuation matches."""
        self._learn(state)
        return int(self._table[state, self._class_of_byte[byte]])

    def step_many(self, states: np.ndarray, byte_classes: np.ndarray) -> np.ndarray:
        """Apply `step` to int32 [N] states, with the classes of their bytes, uint8 [N]."""
        for state in set(states[~self._is_known[states]].tolist()):
            self._learn(state)
        return self._table[states, byte_classes]

    def _learn(self, state: int) -> None:
        """Build the successors of a state."""
        if self._is_known[state]:
            return
        targets_by_range: dict[tuple[int, int], list[int]] = defaultdict(list)
        for nfa_state in array("i", self._places[state]):
            for low, high, target in self._nfa.edges[nfa_state]:
                targets_by_range[low, high].append(target)
        targets_of: list[set[int]] = [set() for _ in range(self._num_classes)]
        for (low, high), targets in targets_by_range.items():
            for byte_class in range(self._class_of_byte[low], self._class_of_byte[high] + 1):
                targets_of[byte_class].update(targets)
        row = [self._number_after(frozenset(targets)) for targets in targets_of]
        self._table[state] = row  # read the table now: numbering a state may have replaced it by a larger one
        self._is_known[state] = True

    def _number_after(self, targets: frozenset[int]) -> int:
        number = self._targets.get(targets)
        if number is None:
            number = self._targets[targets] = self._number(_packed(self._nfa.closure(targets)))
        return number

    def _number(self, place: Place) -> int:
        """Return the number of a place; a new one if the table has none."""
        number = self._number_of.get(place)
        if number is None:
            number, num_members = len(self._places), self._num_members + len(place) // array("i").itemsize
            if (number >= MAX_DFA_STATES or num_members > MAX_MEMBERS) and not self._may_overflow:
                raise TableFullError(
                    f"the pattern needs more than {MAX_DFA_STATES:,} states at once, or states of more than "
                    f"{MAX_MEMBERS:,} positions in all: too much of it can overlap; lower the counts in {{m,n}}"
                )
            self._num_members = num_members
            self._number_of[place] = number
            self._places.append(place)
            if number == len(self._is_known):
                self._table = np.concatenate([self._table, np.zeros_like(self._table)])
                self._is_known = np.concatenate([self._is_known, np.zeros_like(self._is_known)])
        return number


def _packed(nfa_states: Iterable[int]) -> Place:
    return array("i", sorted(nfa_states)).tobytes()


def _byte_classes(nfa: NFA) -> np.ndarray:
    """Return uint8 [256]: the number of range borders at or below each byte."""
    borders = np.zeros(257, np.int64)
    for low, high in {(low, high) for edges in nfa.edges for low, high, _ in edges}:
        borders[low] = borders[high + 1] = 1
    borders[0] = 0
    return np.cumsum(borders[:256]).astype(np.uint8)

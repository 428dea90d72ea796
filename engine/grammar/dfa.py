r"""Automaton over bytes for a regular expression.

    tree --Thompson--> NFA: a few states for every part of the pattern, several active at once
         --subsets---> DFA: one state per set of NFA states that can be reached by the same bytes

       "(ab|ac)d"        NFA   0 -a-> 1 -b-> 2 -d-> 5        DFA   0 -a-> {1,3} -b-> {2} -d-> {5}
                               0 -a-> 3 -c-> 4 -d-> 5                       \--c-> {4} -d-> {5}

It reads bytes, not characters, because a token may end in the middle of a character. A character beyond ASCII becomes
a chain of its UTF-8 bytes.

DFA states are built when they are first left: a pattern such as "(a|b)*a(a|b){30}" has 2^30 states, of which an output
visits a few. Parts of the NFA that cannot reach the end are removed first, so every possible step can be completed.

Sources: Thompson 1968 (regex to NFA), Rabin and Scott 1959 (subsets), RE2 (states on demand).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from engine.core.grammar_protocol import GrammarError
from engine.grammar.regex import EMPTY, Characters, Choice, Graph, Node, Repeat, Sequence

MAX_NFA_STATES = 200_000
MAX_DFA_STATES = 100_000
DEAD, START = 0, 1  # States of every DFA: the dead one, and the one before the first byte

ByteRange = tuple[int, int]


class NFA:
    """NFA built from a tree. States are numbers; 0 is the start."""

    def __init__(self, tree: Node, *, of_bytes: bool = True) -> None:
        """of_bytes: the alphabet is bytes, else characters."""
        self.edges: list[list[tuple[int, int, int]]] = []
        """Moves of each state: (first byte, last byte, next state)."""
        self.free_moves: list[list[int]] = []  # Epsilon moves of each state
        self._chains = utf8_chains if of_bytes else _one_character
        self.end = self._add(tree, self._state())
        self.is_empty = not self._cut_what_never_ends()
        """Whether no text matches."""

    def _state(self) -> int:
        if len(self.edges) >= MAX_NFA_STATES:
            raise GrammarError(
                f"the pattern needs more than {MAX_NFA_STATES:,} states: it repeats too much; lower the counts "
                "in {m,n}, or minLength, maxLength, minItems or maxItems of a schema"
            )
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
        for chain in (chain for first, last in node.ranges for chain in self._chains(first, last)):
            here = start
            for low, high in chain[:-1]:
                there = self._state()
                self.edges[here].append((low, high, there))
                here = there
            self.edges[here].append((*chain[-1], end))

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
        alive = reached(self.end, sources)
        self.edges = [[edge for edge in edges if edge[2] in alive] for edges in self.edges]
        self.free_moves = [[target for target in moves if target in alive] for moves in self.free_moves]
        return 0 in alive


def reached(start: int, moves: list[list[int]]) -> set[int]:
    """Return the states that a state reaches over any number of moves."""
    seen, todo = {start}, [start]
    while todo:
        new = set(moves[todo.pop()]) - seen
        seen |= new
        todo += new
    return seen


class DFA:
    """DFA with states built on demand."""

    def __init__(self, tree: Node) -> None:
        self._nfa = nfa = NFA(tree)
        if nfa.is_empty:
            raise GrammarError("the pattern matches no text at all, so no output could ever satisfy it")
        self.class_of_byte = _byte_classes(nfa)
        """uint8 [256]: class of each byte; bytes that no edge distinguishes share a class and a column of the table."""
        self._class_of_byte: list[int] = self.class_of_byte.tolist()
        self._num_classes = max(self._class_of_byte) + 1
        self._table = np.zeros((64, self._num_classes), np.int32)
        self._is_known = np.zeros(64, bool)
        self._is_known[DEAD] = True
        self._sets: list[frozenset[int]] = [frozenset()]
        self._number_of: dict[frozenset[int], int] = {frozenset(): DEAD}
        self._targets: dict[frozenset[int], int] = {frozenset(): DEAD}
        self._closures: dict[int, frozenset[int]] = {}
        self._number(self._closure(0))  # START

    @property
    def num_states(self) -> int:
        """Number of states built so far, the dead one included."""
        return len(self._sets)

    def is_accepting(self, state: int) -> bool:
        """Whether the text read so far is a whole match."""
        return self._nfa.end in self._sets[state]

    def step(self, state: int, byte: int) -> int:
        """Return the state after a byte; DEAD if no continuation matches."""
        self._learn(state)
        return int(self._table[state, self._class_of_byte[byte]])

    def step_many(self, states: np.ndarray, byte_classes: np.ndarray) -> np.ndarray:
        """Apply `step` to int32 [N] states, with the classes of their bytes, uint8 [N]."""
        for state in set(states[~self._is_known[states]].tolist()):
            self._learn(state)
        return self._table[states, byte_classes]

    def matches(self, text: bytes) -> bool:
        """Whether a whole text is a match."""
        state = START
        for byte in text:
            state = self.step(state, byte)
        return self.is_accepting(state)

    def _learn(self, state: int) -> None:
        """Build the successors of a state."""
        if self._is_known[state]:
            return
        targets_of: list[set[int]] = [set() for _ in range(self._num_classes)]
        for nfa_state in self._sets[state]:
            for low, high, target in self._nfa.edges[nfa_state]:
                for byte_class in range(self._class_of_byte[low], self._class_of_byte[high] + 1):
                    targets_of[byte_class].add(target)
        row = [self._number_after(frozenset(targets)) for targets in targets_of]
        self._table[state] = row  # read the table now: numbering a state may have replaced it by a larger one
        self._is_known[state] = True

    def _number_after(self, targets: frozenset[int]) -> int:
        number = self._targets.get(targets)
        if number is None:
            closure = frozenset().union(*(self._closure(target) for target in targets))
            number = self._targets[targets] = self._number(closure)
        return number

    def _number(self, nfa_states: frozenset[int]) -> int:
        number = self._number_of.get(nfa_states)
        if number is None:
            number = len(self._sets)
            if number >= MAX_DFA_STATES:
                raise GrammarError(
                    f"the pattern needs more than {MAX_DFA_STATES:,} states: too much of it can overlap"
                )
            self._number_of[nfa_states] = number
            self._sets.append(nfa_states)
            if number == len(self._is_known):
                self._table = np.concatenate([self._table, np.zeros_like(self._table)])
                self._is_known = np.concatenate([self._is_known, np.zeros_like(self._is_known)])
        return number

    def _closure(self, state: int) -> frozenset[int]:
        """Return the epsilon closure of a state, without states that have no other moves."""
        known = self._closures.get(state)
        if known is None:
            seen = reached(state, self._nfa.free_moves)
            speaking = (member for member in seen if self._nfa.edges[member] or member == self._nfa.end)
            known = self._closures[state] = frozenset(speaking)
        return known


def _byte_classes(nfa: NFA) -> np.ndarray:
    """Return uint8 [256]: the number of range borders at or below each byte."""
    borders = np.zeros(257, np.int64)
    for low, high in {(low, high) for edges in nfa.edges for low, high, _ in edges}:
        borders[low] = borders[high + 1] = 1
    borders[0] = 0
    return np.cumsum(borders[:256]).astype(np.uint8)


def _one_character(first: int, last: int) -> Iterator[tuple[ByteRange, ...]]:
    yield ((first, last),)


def utf8_chains(first: int, last: int) -> Iterator[tuple[ByteRange, ...]]:
    """Return the UTF-8 encodings of a range of code points, as chains of byte ranges.

        U+00E9 .. U+07FF    [C3][A9-BF]   [C4-DF][80-BF]

    Surrogates (U+D800 to U+DFFF) have no encoding and are left out. Source: the Rust crate utf8-ranges.
    """
    for border in (0x7F, 0x7FF, 0xD7FF, 0xDFFF, 0xFFFF):
        if first <= border < last:
            yield from utf8_chains(first, border)
            yield from utf8_chains(border + 1, last)
            return
    if 0xD800 <= first <= 0xDFFF:
        return
    # All encodings have one length now. Where the last bytes do not run over their whole range, split.
    for shift in (6, 12, 18):
        below = (1 << shift) - 1
        if first >> shift == last >> shift or last <= 0x7F:
            continue
        if first & below:
            yield from utf8_chains(first, first | below)
            yield from utf8_chains((first | below) + 1, last)
            return
        if last & below != below:
            yield from utf8_chains(first, (last & ~below) - 1)
            yield from utf8_chains(last & ~below, last)
            return
    yield tuple(zip(chr(first).encode(), chr(last).encode(), strict=True))

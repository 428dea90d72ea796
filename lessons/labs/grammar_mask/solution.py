"""Lab grammar-mask: the tokens that a grammar allows next, from an automaton over bytes.

The seam is a grammar backend (engine/core/grammar_protocol.py; ours is engine/grammar/dfa_backend.py). An automaton
reads the output byte by byte. A token is allowed if its bytes lead from the current state to a state of the automaton:
a token may cross several states, and it may begin or end within a character. The sampler sets the logits of all other
tokens to minus infinity.

    pattern  "yes|yeah"      state 1 -y-> 2 -e-> 3 -s-> 4 (accepting)
                                                 3 -a-> 5 -h-> 4
    tokens   0 "y"  1 "ye"  2 "yes"  3 "es"  4 "ah"  5 "yet"  6 "" (special)  7 "" (end of sequence)

    place = grammar.start()      place.mask()  -> 0b00000111      y, ye, yes
    place.accept([0])  -> True   place.mask()  -> 0b00001000      es
    place.accept([3])  -> True   place.mask()  -> 0b10000000      end of sequence

A mask is an array("I") of ceil(V / 32) words for V tokens: token v is bit v % 32 of word v // 32, all other bits are 0.
The automaton builds a state when it is first asked for, which is expensive, and a request visits the same states again
and again: ask once per state, build one mask per state, and share both among all requests.
Sources: Willard and Louf 2023 (2307.09702); vLLM v1/structured_output/backend_types.py.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Sequence

State = tuple[dict[int, int], bool]
"""Byte -> next state, without the bytes that lead nowhere, and whether the text so far is complete."""
ENDED = -1  # state of a place after end of sequence


class Grammar:
    """A grammar with a vocabulary, ready for any number of requests."""

    def __init__(
        self, automaton: Callable[[int], State], start: int, tokens: Sequence[bytes], eos: Collection[int]
    ) -> None:
        """automaton: returns a state by its number, 0 or more; call it at most once for each state.

        start: number of the first state. tokens: bytes of each token id; b"" for special tokens, which are never
        allowed. eos: ids of end of sequence, allowed where the text is complete, whatever their bytes. From every
        state of the automaton a complete text can be reached.
        """
        self.automaton, self.first = automaton, start
        self.tokens, self.eos = tokens, frozenset(eos)
        self.states: dict[int, State] = {}
        self.masks: dict[int, array[int]] = {ENDED: self._pack([])}
        self.trie = Node()
        for token_id, spelled in enumerate(tokens):
            if spelled and token_id not in self.eos:
                node = self.trie
                for byte in spelled:
                    node = node.children.setdefault(byte, Node())
                node.token_ids.append(token_id)

    def start(self) -> Place:
        """Return the place of a new request, before its first token."""
        return Place(self)

    def _state(self, number: int) -> State:
        found = self.states.get(number)
        if found is None:
            found = self.states[number] = self.automaton(number)
        return found

    def _after(self, number: int, token_id: int) -> int | None:
        """Return the state after a token, or None if it is not allowed."""
        if number == ENDED or not 0 <= token_id < len(self.tokens):
            return None
        if token_id in self.eos:
            return ENDED if self._state(number)[1] else None
        if not self.tokens[token_id]:
            return None
        for byte in self.tokens[token_id]:
            moves, _ = self._state(number)
            if byte not in moves:
                return None
            number = moves[byte]
        return number

    def _mask(self, number: int) -> array[int]:
        found = self.masks.get(number)
        if found is None:
            found = self.masks[number] = self._pack(self._allowed(number))
        return found

    def _allowed(self, number: int) -> list[int]:
        """Walk along the trie of the tokens and the automaton together."""
        allowed = [*self.eos] if self._state(number)[1] else []
        todo = [(self.trie, number)]
        while todo:
            node, here = todo.pop()
            allowed += node.token_ids
            if node.children:
                moves = self._state(here)[0]
                todo += [(child, moves[byte]) for byte, child in node.children.items() if byte in moves]
        return allowed

    def _pack(self, token_ids: Sequence[int]) -> array[int]:
        words = array("I", bytes(4 * -(-len(self.tokens) // 32)))
        for token_id in token_ids:
            words[token_id // 32] |= 1 << token_id % 32
        return words


class Node:
    """A node of the trie: the tokens that end here, and the nodes behind each byte."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.children: dict[int, Node] = {}


class Place:
    """One request's place in its grammar. `Grammar.start` makes it."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.path = [grammar.first]
        """The state before the first token and after each accepted one."""

    @property
    def is_ended(self) -> bool:
        """Whether end of sequence was accepted."""
        return self.path[-1] == ENDED

    def mask(self) -> array[int]:
        """Return the mask of the tokens that may come next; all bits are 0 after end of sequence.

        Places in one state get the same object, each time: the engine copies from it and does not change it.
        """
        return self.grammar._mask(self.path[-1])

    def accept(self, token_ids: Sequence[int]) -> bool:
        """Advance by tokens that were chosen. Return False, and change nothing, if one of them is not allowed.

        Ids outside of the vocabulary are not allowed. After end of sequence no token is.
        """
        states = self._follow(token_ids)
        if len(states) < len(token_ids):
            return False
        self.path += states
        return True

    def validate(self, token_ids: Sequence[int]) -> list[int]:
        """Return the longest prefix of these tokens that `accept` would accept. Change nothing."""
        return list(token_ids[: len(self._follow(token_ids))])

    def rollback(self, count: int) -> None:
        """Undo the last `count` accepted tokens, also those of several calls and end of sequence.

        Raises ValueError, and changes nothing, for a negative count and for more tokens than were accepted.
        """
        if not 0 <= count < len(self.path):
            raise ValueError(f"{count} tokens cannot be undone; {len(self.path) - 1} were accepted")
        del self.path[len(self.path) - count :]

    def _follow(self, token_ids: Sequence[int]) -> list[int]:
        """Return the states after each token, up to the first that is not allowed."""
        here, states = self.path[-1], []
        for token_id in token_ids:
            after = self.grammar._after(here, token_id)
            if after is None:
                break
            states.append(after)
            here = after
        return states

"""Solution of lab grammar-mask. The docstrings of the stub state the contract."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Sequence

State = tuple[dict[int, int], bool]
ENDED = -1
"""State of a place after end of sequence."""


class Grammar:
    def __init__(
        self, automaton: Callable[[int], State], start: int, tokens: Sequence[bytes], eos: Collection[int]
    ) -> None:
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
    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.path = [grammar.first]
        """The state before the first token and after each accepted one."""

    @property
    def is_ended(self) -> bool:
        return self.path[-1] == ENDED

    def mask(self) -> array[int]:
        return self.grammar._mask(self.path[-1])

    def accept(self, token_ids: Sequence[int]) -> bool:
        states = self._follow(token_ids)
        if len(states) < len(token_ids):
            return False
        self.path += states
        return True

    def validate(self, token_ids: Sequence[int]) -> list[int]:
        return list(token_ids[: len(self._follow(token_ids))])

    def rollback(self, count: int) -> None:
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

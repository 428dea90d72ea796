"""Grammar backend dfa: token masks from an automaton, for regular languages.

A token is allowed if its bytes do not lead from the current state to the dead one. All tokens are checked at once,
along the trie of the vocabulary:

    state 7, expects "true" or "tea"        root        t        r        u ...
                                            7 --------> 8 -----> 9 -----> 10      tokens "t", "tr", "tru" allowed
                                              \\ a       \\ e --> 11
                                               dead      ...                      tokens "a", "ab", "abc" not

If the states of all tokens fill the automaton's table, those of each first byte are followed on their own, and so on.

The mask of a state never changes, so it is built once and cached. Most states of a request repeat: a string loops in
one state, keys and brackets recur with the next object.

Source: Willard and Louf 2023, "Efficient Guided Generation for Large Language Models" (the index from states to
tokens); vLLM v1/structured_output/backend_outlines.py for its place in an engine.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import Any

import numpy as np

from engine.grammar.dfa import DEAD, DFA, Place, TableFullError
from engine.grammar.regex import Node
from engine.grammar.vocabulary import Vocabulary, pack_bits

MAX_MASK_BYTES = 64 << 20  # Maximum bytes of cached masks per grammar; the least recently used is evicted
MIN_MASKS = 16  # Masks kept however large they are
MASK_OVERHEAD = 300  # Bytes of the Python objects around a cached mask
ENDED = None  # Place after end-of-sequence was accepted


class CompiledDFA:
    """An automaton with a vocabulary and cached masks of visited states."""

    def __init__(self, tree: Node, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.dfa = DFA(tree)
        self._lock = Lock()  # Guards the automaton, which grows in the engine's thread and in the mask thread
        self._masks: OrderedDict[Place, np.ndarray] = OrderedDict()
        self._mask_bytes = 0

    def start(self) -> DFAGrammar:
        return DFAGrammar(self)

    def mask(self, place: Place) -> np.ndarray:
        """Return int32 [num_words]: the tokens that a place allows. Read-only."""
        with self._lock:
            mask = self._masks.get(place)
            if mask is None:
                mask = self._masks[place] = self._make_mask(place)
                self._mask_bytes += _size(place, mask)
                while len(self._masks) > MIN_MASKS and self._mask_bytes > MAX_MASK_BYTES:
                    self._mask_bytes -= _size(*self._masks.popitem(last=False))
            else:
                self._masks.move_to_end(place)
            return mask

    def _make_mask(self, place: Place) -> np.ndarray:
        trie = self.vocabulary.trie
        alive = np.zeros(trie.num_nodes, bool)
        self._mark(alive, place, 0, 0)
        mask = pack_bits(len(self.vocabulary), trie.token_ids[alive[trie.node_of]])
        return mask | self.vocabulary.eos_mask if self.dfa.is_end(place) else mask

    def _mark(self, alive: np.ndarray, place: Place, node: int, depth: int) -> None:
        """Mark the nodes below one that a place lets live; each child on its own if all fill the table."""
        try:
            alive |= self.dfa.run(place, lambda state: self._alive_below(state, node, depth))
        except TableFullError:
            level = self.vocabulary.trie.levels[depth]
            for child in np.flatnonzero(level.parents == node).tolist():
                if after := self.dfa.after(place, bytes([level.labels[child]])):
                    alive[level.first + child] = True
                    if depth + 1 < len(self.vocabulary.trie.levels):
                        self._mark(alive, after, level.first + child, depth + 1)

    def _alive_below(self, state: int, node: int, depth: int) -> np.ndarray:
        """Return bool [nodes]: the nodes below one of a depth, and itself, that its state lets live."""
        trie = self.vocabulary.trie
        states = np.zeros(trie.num_nodes, np.int32)  # DEAD, unless a live state is found
        states[node] = state
        for level in trie.levels[depth:]:
            before = states[level.parents]
            alive = np.flatnonzero(before)
            if not len(alive):
                break
            byte_classes = self.dfa.class_of_byte[level.labels[alive]]
            states[level.first + alive] = self.dfa.step_many(before[alive], byte_classes)
        return states != DEAD

    def place_after(self, place: Place | None, token_id: int) -> Place | None:
        """Return the place after a token; an empty one if it is not allowed."""
        if not place:
            return b""
        with self._lock:
            if token_id in self.vocabulary.eos_token_ids:
                return ENDED if self.dfa.is_end(place) else b""
            spelled = self.vocabulary.token_bytes[token_id] if 0 <= token_id < len(self.vocabulary) else b""
            return self.dfa.after(place, spelled) if spelled else b""


def _size(place: Place, mask: np.ndarray) -> int:
    return len(place) + mask.nbytes + MASK_OVERHEAD


class DFAGrammar:
    """Path of a request through the automaton: one place per token, so that rollback cuts a list."""

    def __init__(self, compiled: CompiledDFA) -> None:
        self._compiled = compiled
        self._places: list[Place | None] = [compiled.dfa.start]

    def accept_tokens(self, token_ids: Sequence[int]) -> bool:
        places = self._follow(token_ids)
        if len(places) < len(token_ids):
            return False
        self._places += places
        return True

    def validate_tokens(self, token_ids: Sequence[int]) -> list[int]:
        return list(token_ids[: len(self._follow(token_ids))])

    def rollback(self, num_tokens: int) -> None:
        if not 0 <= num_tokens < len(self._places):
            raise ValueError(f"cannot take back {num_tokens} of {len(self._places) - 1} tokens")
        del self._places[len(self._places) - num_tokens :]

    def fill_bitmask(self, words: Any) -> None:
        place = self._places[-1]
        words[:] = 0 if place is ENDED else self._compiled.mask(place)

    def is_terminated(self) -> bool:
        return self._places[-1] is ENDED

    def _follow(self, token_ids: Sequence[int]) -> list[Place | None]:
        """Return the places after each token, up to the first that is not allowed."""
        place, places = self._places[-1], list[Place | None]()
        for token_id in token_ids:
            place = self._compiled.place_after(place, token_id)
            if place == b"":
                break
            places.append(place)
        return places

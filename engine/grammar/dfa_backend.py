"""Grammar backend dfa: token masks from an automaton, for regular languages.

A token is allowed if its bytes do not lead from the current state to the dead one. All tokens are checked at once,
along the trie of the vocabulary:

    state 7, expects "true" or "tea"        root        t        r        u ...
                                            7 --------> 8 -----> 9 -----> 10      tokens "t", "tr", "tru" allowed
                                              \\ a       \\ e --> 11
                                               dead      ...                      tokens "a", "ab", "abc" not

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

from engine.grammar.dfa import DEAD, DFA, START
from engine.grammar.regex import Node
from engine.grammar.vocabulary import Vocabulary, pack_bits

MAX_MASK_BYTES = 64 << 20  # Maximum bytes of cached masks per grammar; the least recently used is evicted
ENDED = -1  # State after end-of-sequence was accepted


class CompiledDFA:
    """An automaton with a vocabulary and cached masks of visited states."""

    def __init__(self, tree: Node, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.dfa = DFA(tree)
        self._lock = Lock()  # Guards the automaton, which grows in the engine's thread and in the mask thread
        self._masks: OrderedDict[int, np.ndarray] = OrderedDict()
        self._max_masks = max(16, MAX_MASK_BYTES // (4 * vocabulary.num_words))

    def start(self) -> DFAGrammar:
        return DFAGrammar(self)

    def mask(self, state: int) -> np.ndarray:
        """Return int32 [num_words]: the tokens that a state allows. Read-only."""
        with self._lock:
            mask = self._masks.get(state)
            if mask is None:
                mask = self._masks[state] = self._make_mask(state)
                if len(self._masks) > self._max_masks:
                    self._masks.popitem(last=False)
            else:
                self._masks.move_to_end(state)
            return mask

    def _make_mask(self, state: int) -> np.ndarray:
        trie = self.vocabulary.trie
        states = np.zeros(trie.num_nodes, np.int32)  # DEAD, unless a live state is found
        states[0] = state
        for level in trie.levels:
            before = states[level.parents]
            alive = np.flatnonzero(before)
            if not len(alive):
                break
            byte_classes = self.dfa.class_of_byte[level.labels[alive]]
            states[level.first + alive] = self.dfa.step_many(before[alive], byte_classes)
        mask = pack_bits(len(self.vocabulary), trie.token_ids[states[trie.node_of] != DEAD])
        return mask | self.vocabulary.eos_mask if self.dfa.is_accepting(state) else mask

    def state_after(self, state: int, token_id: int) -> int:
        """Return the state after a token; DEAD if it is not allowed."""
        if state in (ENDED, DEAD):
            return DEAD
        if token_id in self.vocabulary.eos_token_ids:
            return ENDED if self.dfa.is_accepting(state) else DEAD
        spelled = self.vocabulary.token_bytes[token_id] if 0 <= token_id < len(self.vocabulary) else b""
        if not spelled:
            return DEAD
        with self._lock:
            for byte in spelled:
                state = self.dfa.step(state, byte)
        return state


class DFAGrammar:
    """Path of a request through the automaton: one state per token, so that rollback cuts a list."""

    def __init__(self, compiled: CompiledDFA) -> None:
        self._compiled = compiled
        self._states = [START]

    def accept_tokens(self, token_ids: Sequence[int]) -> bool:
        states = self._follow(token_ids)
        if len(states) < len(token_ids):
            return False
        self._states += states
        return True

    def validate_tokens(self, token_ids: Sequence[int]) -> list[int]:
        return list(token_ids[: len(self._follow(token_ids))])

    def rollback(self, num_tokens: int) -> None:
        if not 0 <= num_tokens < len(self._states):
            raise ValueError(f"cannot take back {num_tokens} of {len(self._states) - 1} tokens")
        del self._states[len(self._states) - num_tokens :]

    def fill_bitmask(self, words: Any) -> None:
        words[:] = 0 if self.is_terminated() else self._compiled.mask(self._states[-1])

    def is_terminated(self) -> bool:
        return self._states[-1] == ENDED

    def _follow(self, token_ids: Sequence[int]) -> list[int]:
        """Return the states after each token, up to the first that is not allowed."""
        state, states = self._states[-1], []
        for token_id in token_ids:
            state = self._compiled.state_after(state, token_id)
            if state == DEAD:
                break
            states.append(state)
        return states

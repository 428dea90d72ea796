"""Token masks from an automaton: our readable backend, for everything that is a regular language.

A token is allowed if walking its bytes from the current state does not end in the dead one. All tokens are walked at
once, along the trie of the vocabulary:

    state 7, expects "true" or "tea"        root        t        r        u ...
                                            7 --------> 8 -----> 9 -----> 10      tokens "t", "tr", "tru" allowed
                                              \\ a       \\ e --> 11
                                               dead      ...                      tokens "a", "ab", "abc" not

What a state allows never changes, so its mask is made once and kept. In a running request most states are old ones:
a string goes round in one state, keys and brackets come again with the next object.

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

MAX_MASK_BYTES = 64 << 20
"""Of masks that one grammar keeps; the least recently used goes first."""
ENDED = -1
"""In the place of a state, once end-of-sequence was accepted."""


class CompiledDFA:
    """An automaton and a vocabulary, and the masks of the states that were visited."""

    def __init__(self, tree: Node, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.dfa = DFA(tree)
        self._lock = Lock()
        """The automaton grows when it is used, by the engine's thread and by the one that makes masks."""
        self._masks: OrderedDict[int, np.ndarray] = OrderedDict()
        self._max_masks = max(16, MAX_MASK_BYTES // (4 * vocabulary.num_words))

    def start(self) -> DFAGrammar:
        return DFAGrammar(self)

    def mask(self, state: int) -> np.ndarray:
        """int32 [num_words]: what may come next in a state. Not to be written to."""
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
        """DEAD if the token is not allowed here."""
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
    """One request's path through the automaton: a state per token, so that taking tokens back is cutting a list."""

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
        """The states after each token, up to the first that is not allowed."""
        state, states = self._states[-1], []
        for token_id in token_ids:
            state = self._compiled.state_after(state, token_id)
            if state == DEAD:
                break
            states.append(state)
        return states

"""Bytes of all tokens, as a trie that is walked level by level.

    tokens   5 "a"   6 "ab"   7 "abc"   8 "b"   9 "ab"         trie     root -a-> n1 -b-> n3 -c-> n4
                                                                             \\-b-> n2
    token_ids    [ 5   6   7   8   9 ]        nodes in order of their depth, so that a whole depth is walked at once:
    node_of      [ n1  n3  n4  n2  n3 ]       levels  [ (n1 n2)  (n3)  (n4) ]

Tokens with a common prefix share its steps, which halves them for a vocabulary of 128,000; numpy takes the steps of a
level together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np


class TokenSource(Protocol):
    """Interface to a tokenizer's tokens (`engine.frontend.tokenizer.Tokenizer`)."""

    def token_bytes(self, token_id: int) -> bytes: ...

    def is_special(self, token_id: int) -> bool: ...

    @property
    def eos_token_id(self) -> int | None: ...


@dataclass(frozen=True)
class Vocabulary:
    """All tokens of a model, and its end-of-sequence tokens."""

    token_bytes: list[bytes]
    """Bytes by id, up to the model's vocabulary size; empty for special tokens, padding and end-of-sequence."""
    eos_token_ids: frozenset[int]

    def __post_init__(self) -> None:
        for token_id in self.eos_token_ids:
            if token_id < len(self.token_bytes):
                self.token_bytes[token_id] = b""

    @classmethod
    def of(cls, tokenizer: TokenSource, size: int, eos_token_ids: Iterable[int]) -> Vocabulary:
        """Build from a tokenizer. Special tokens have no bytes in a grammar, even those that have a spelling."""
        token_bytes = [b"" if tokenizer.is_special(i) else tokenizer.token_bytes(i) for i in range(size)]
        return cls(token_bytes, frozenset(eos_token_ids))

    def __len__(self) -> int:
        return len(self.token_bytes)

    @property
    def num_words(self) -> int:
        """Length of a bitmask in int32 words."""
        return -(-len(self) // 32)

    @cached_property
    def eos_mask(self) -> np.ndarray:
        """Return int32 [num_words] that allows only end-of-sequence."""
        return pack_bits(len(self), np.array(sorted(self.eos_token_ids), np.int64))

    @cached_property
    def trie(self) -> TokenTrie:
        return TokenTrie(self.token_bytes)


@dataclass(frozen=True, slots=True)
class Level:
    """The nodes of one depth: `first` up to `first + len(parents)`."""

    first: int
    parents: np.ndarray  # int64: each node's parent, by number
    labels: np.ndarray  # uint8: the byte that leads from the parent to it


class TokenTrie:
    """Trie of the tokens that have bytes. Node 0 is the root."""

    def __init__(self, token_bytes: list[bytes]) -> None:
        self.token_ids = np.array([i for i, spelled in enumerate(token_bytes) if spelled], np.int64)
        self.levels: list[Level] = []
        self.num_nodes = 1
        self.node_of = nodes = np.zeros(len(self.token_ids), np.int64)
        """int64: the node at which each of `token_ids` ends."""
        lengths = np.array([len(token_bytes[i]) for i in self.token_ids], np.int64)
        text = np.frombuffer(b"".join(token_bytes), np.uint8)
        starts = np.cumsum(lengths) - lengths
        # One level per round: its nodes are the distinct pairs of a node and a next byte.
        for depth in range(int(lengths.max(initial=0))):
            longer = np.flatnonzero(lengths > depth)
            steps = nodes[longer] << 8 | text[starts[longer] + depth]
            different, which = np.unique(steps, return_inverse=True)
            self.levels.append(Level(self.num_nodes, different >> 8, (different & 255).astype(np.uint8)))
            nodes[longer] = self.num_nodes + which
            self.num_nodes += len(different)


def pack_bits(size: int, token_ids: np.ndarray) -> np.ndarray:
    """Return int32 [ceil(size / 32)] with the bits of these tokens."""
    bits = np.zeros(-(-size // 32) * 32, bool)
    bits[token_ids] = True
    return np.packbits(bits, bitorder="little").view(np.int32)

"""The contents of blocks: the request whose tokens a block holds, and the preceding block of their sequence.

A trace identifies the content of a block by its hash, which covers the block's tokens and all earlier ones
(`engine/core/hashing.py`). The parent of a hash is not recorded; it follows from the block tables: the parent of entry
i is entry i - 1 of the same table. For a free block it is the table of the request that sealed the block.

The key of a content is its published hash, or else a digest of the same tokens. Two requests that computed the same
tokens at the same time hold two blocks, of which one is published; equal digests show that they have the same content.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from functools import cached_property
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.trace.blocks import NO_REQUEST, NULL_BLOCK, Blocks
from engine.trace.format import BLOCK_EVENTS, HASH_BYTES
from engine.trace.history import Stay
from engine.trace.protocol import Trace

_SEAL = BLOCK_EVENTS.index("seal")


class Place(NamedTuple):
    """Block `index` of the sequence of a request."""

    number: int
    index: int  # type: ignore[assignment]


Key = int | bytes | Place
"""Key of a content: its published hash, a digest of its tokens, or its place if it is not written yet."""


class Contents:
    """The contents of all blocks after one step. Digests are cached per request, because they never change."""

    def __init__(self, reader: Trace, step: int, digests: dict[int, list[bytes]] | None = None) -> None:
        self.reader = reader
        self.step = step
        self.state = reader.state_at(step)
        self.blocks: Blocks = self.state.blocks
        self._digests = {} if digests is None else digests
        self.tables = {
            reader.find(name, step).number: table for name, table in self.state.block_tables.items()
        }
        """Request number -> its block table; running requests only, the most important first."""
        self.owners: dict[int, list[Place]] = {}
        """Block -> its places in the tables that hold it."""
        for number, table in self.tables.items():
            for index, block in enumerate(table):
                if block != NULL_BLOCK:
                    self.owners.setdefault(block, []).append(Place(number, index))
        self.block_of = {value: block for block, value in enumerate(self.blocks.hash) if value}
        """Published hash -> the block that a prefix hit reuses."""
        self._seal_step, self._seal_request = _last_seals(reader, step)
        self._sealed: dict[int, Place | None] = {}

    def place(self, block: int) -> Place | None:
        """The place of the tokens in a block: that of an owner, or of the request that sealed it; None without
        content."""
        owners = self.owners.get(block)
        if owners:
            return owners[0]
        return self.sealed_by(block) if self.blocks.hash[block] else None

    def sealed_by(self, block: int) -> Place | None:
        """The place at which a block's last content was sealed; None if it never was, or came by a transfer."""
        if block not in self._sealed:
            number, step = int(self._seal_request[block]), int(self._seal_step[block])
            place = None
            if number != NO_REQUEST:
                index = position(self.reader.requests[number].last_stay(step), block, step)
                place = None if index is None else Place(number, index)
            self._sealed[block] = place
        return self._sealed[block]

    def key(self, place: Place) -> Key:
        """The content at a place in a request's sequence."""
        block = self._block_at(place)
        if block and self.blocks.hash[block]:
            return self.blocks.hash[block]
        is_written = (place.index + 1) * self.reader.block_size <= self.written(place.number)
        if not is_written or not self.block_of:  # without published blocks there is nothing to match
            return place
        digest = self.digests(place.number)[place.index]
        return self._published_digests.get(digest, digest)

    def _block_at(self, place: Place) -> int | None:
        """The block at a place of a running request, or of an ended one if the block still has that content."""
        table = self.tables.get(place.number)
        if table is not None:
            return table[place.index] if place.index < len(table) else None
        for stay in reversed(self.reader.requests[place.number].stays):
            if stay.admitted <= self.step and place.index < len(stay.blocks):
                block = stay.blocks[place.index]
                return block if block and self._is_as_left(block, place, stay) else None
        return None

    def _is_as_left(self, block: int, place: Place, stay: Stay) -> bool:
        """Whether a block's last seal was before a request released it: no other request seals a held block. In the
        step of the release another request may already have allocated it."""
        left = self.step + 1 if stay.left is None else stay.left
        if stay.behind_window:
            left = min(
                (step for step, num_behind in stay.behind_window if num_behind > place.index), default=left
            )
        sealed = int(self._seal_step[block])
        return sealed < left or (sealed == left and int(self._seal_request[block]) == place.number)

    def tokens(self, place: Place) -> list[int]:
        """The token ids at a place whose KV exists after the step."""
        size = self.reader.block_size
        request = self.reader.requests[place.number]
        start, end = place.index * size, min((place.index + 1) * size, self.written(place.number))
        prompt = request.record["prompt"]
        outputs = request.tokens[max(0, start - len(prompt)) : max(0, end - len(prompt))]
        return [*prompt[start:end], *outputs]

    def eviction_order(self, only_cached: bool = False) -> list[tuple[int, int]]:
        """(place, block) of the free blocks; place 1 is reused next."""
        queue = enumerate(self.blocks.free_queue(), start=1)
        return [(place, block) for place, block in queue if self.blocks.hash[block] or not only_cached]

    def name(self, number: int) -> str:
        return self.reader.requests[number].request_id

    def written(self, number: int) -> int:
        """Tokens of a request whose KV exists after the step; for an ended request, all that it had."""
        request = self.reader.requests[number]
        if number in self.tables:
            return self.state.num_computed[request.request_id]
        return request.num_prompt_tokens + request.num_outputs_at(self.step)

    def digests(self, number: int) -> list[bytes]:
        """A digest per full block of a request's sequence, each covering all earlier blocks."""
        request = self.reader.requests[number]
        size = self.reader.block_size
        have = self._digests.setdefault(number, [])
        if len(have) < (request.num_prompt_tokens + len(request.tokens)) // size:
            tokens = np.array([*request.record["prompt"], *request.tokens], np.int64)
            record = request.record  # requests with another adapter or salt have another root
            root = repr((record["lora"], record["salt"])).encode("utf-8", "surrogatepass")
            parent = have[-1] if have else blake2b(root).digest()
            for index in range(len(have), len(tokens) // size):
                parent = blake2b(
                    parent + tokens[index * size : (index + 1) * size].tobytes(), digest_size=16
                ).digest()
                have.append(parent)
        return have

    @cached_property
    def _published_digests(self) -> dict[bytes, int]:
        """Digest -> published hash of cached contents, computed when a content without a hash must be matched."""
        by_digest: dict[bytes, int] = {}
        for value, block in self.block_of.items():
            place = self.place(block)
            if place is not None and place.index < len(digests := self.digests(place.number)):
                by_digest[digests[place.index]] = value
        return by_digest


def _last_seals(reader: Trace, step: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Per block, the step and the request of its last seal up to a step; NO_REQUEST for none."""
    changes = reader.changes
    end = int(np.searchsorted(np.asarray(changes.step), step, side="right"))
    where = np.flatnonzero(np.asarray(changes.kind)[:end] == _SEAL)
    blocks = np.asarray(changes.block)[where]
    steps, requests = (np.full(reader.num_blocks, NO_REQUEST, np.int32) for _ in range(2))
    steps[blocks] = np.asarray(changes.step)[where]  # the last one per block wins
    requests[blocks] = np.asarray(changes.request)[where]
    return steps, requests


def position(stay: Stay | None, block: int, step: int) -> int | None:
    """The index of a block in a table; the last one, because with a sliding window it may occur twice."""
    if stay is None:
        return None
    come = bisect_right(stay.block_steps, step)
    return next((index for index in reversed(range(come)) if stay.blocks[index] == block), None)


def short(value: int | bytes | None) -> str:
    """The first 8 hex digits of a hash as the engine prints it; an em dash without a hash."""
    if not value:
        return "—"
    data = value if isinstance(value, bytes) else value.to_bytes(HASH_BYTES, sys.byteorder)
    return data[:4].hex()

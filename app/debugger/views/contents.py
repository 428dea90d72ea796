"""What a block holds: whose tokens, and which block comes before it in their sequence.

A trace names the content of a block by its hash, which covers the block's tokens and everything before them
(`engine/core/hashing.py`), but it does not write down the hash's parent. It follows from the block tables: the parent
of entry i is entry i - 1 of the same table. For a block that nobody holds any more it is the table of the request that
sealed it.

A content has a key here: its hash where it is published, else a digest of the same tokens. Two requests that computed
the same tokens at the same time hold two blocks, of which one is published; the digest says that they are the same.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from engine.core.trace_format import BLOCK_EVENTS, HASH_BYTES
from engine.core.trace_reader import TraceReader
from engine.core.trace_replay import NOBODY, NULL_BLOCK, Blocks, RequestHistory, Stay

_SEAL = BLOCK_EVENTS.index("seal")

Key = int | bytes | tuple[int, int]
"""A content: its published hash, a digest of its tokens, or (request, index) of a block that is not full yet."""


class Place(NamedTuple):
    """Block `index` of the sequence of a request."""

    number: int
    index: int


class Contents:
    """The contents of all blocks after one step. Digests are kept per request: they never change."""

    def __init__(self, reader: TraceReader, step: int, digests: dict[int, list[bytes]] | None = None) -> None:
        self.reader = reader
        self.step = step
        self.state = reader.state_at(step)
        self.blocks: Blocks = self.state.blocks
        self._digests = {} if digests is None else digests
        self.tables = {
            request.number: stay.table_at(step)
            for request in reader.requests
            if request.lives_at(step) and (stay := request.stay_at(step)) is not None
        }
        """Request number -> its block table, running requests only, in order of arrival."""
        self.owners: dict[int, list[Place]] = {}
        """Block -> where it stands in the tables that hold it."""
        for number, table in self.tables.items():
            for index, block in enumerate(table):
                if block != NULL_BLOCK:
                    self.owners.setdefault(block, []).append(Place(number, index))
        self.sealed_by = _last_seals(reader, step)
        """Block -> who sealed what it held last, where the trace tells."""
        self.block_of = {value: block for block, value in enumerate(self.blocks.hash) if value}
        """Published hash -> the block that a prefix hit would find."""
        self._hash_of = self._published_digests()

    # ------------------------------------------------------------------ one block

    def place(self, block: int) -> Place | None:
        """Whose tokens a block holds: those of an owner, or of the one who sealed it; None if it holds nothing."""
        owners = self.owners.get(block)
        if owners:
            return owners[0]
        return self.sealed_by.get(block) if self.blocks.hash[block] else None

    def key(self, place: Place) -> Key:
        """The content at a place in a request's sequence."""
        table = self.tables.get(place.number)
        if table is not None and place.index < len(table):
            value = self.blocks.hash[table[place.index]] if table[place.index] != NULL_BLOCK else 0
            if value:
                return value
        digests = self.digests(place.number)
        if place.index >= len(digests) or (place.index + 1) * self.reader.block_size > self.known(
            place.number
        ):
            return (place.number, place.index)
        digest = digests[place.index]
        return self._hash_of.get(digest, digest)

    def tokens(self, place: Place) -> list[int]:
        """The token ids that belong at a place, as far as they are known after the step."""
        size = self.reader.block_size
        request = self.reader.requests[place.number]
        start, end = place.index * size, min((place.index + 1) * size, self.known(place.number))
        prompt = request.record["prompt"]
        outputs = request.tokens[max(0, start - len(prompt)) : max(0, end - len(prompt))]
        return [*prompt[start:end], *outputs]

    # ------------------------------------------------------------------ requests

    def known(self, number: int) -> int:
        """Tokens of a request after the step: prompt and output."""
        request = self.reader.requests[number]
        return request.num_prompt_tokens + request.num_outputs_at(self.step)

    def digests(self, number: int) -> list[bytes]:
        """A digest per full block of a request's sequence, each covering everything before it."""
        request = self.reader.requests[number]
        size = self.reader.block_size
        have = self._digests.setdefault(number, [])
        if len(have) < (request.num_prompt_tokens + len(request.tokens)) // size:
            tokens = np.array([*request.record["prompt"], *request.tokens], np.int64)
            parent = have[-1] if have else _root(request)
            for index in range(len(have), len(tokens) // size):
                parent = blake2b(
                    parent + tokens[index * size : (index + 1) * size].tobytes(), digest_size=16
                ).digest()
                have.append(parent)
        return have

    def _published_digests(self) -> dict[bytes, int]:
        """Digest -> published hash, of what the cache holds."""
        found: dict[bytes, int] = {}
        for value, block in self.block_of.items():
            place = self.place(block)
            if place is not None and place.index < len(digests := self.digests(place.number)):
                found[digests[place.index]] = value
        return found


def _root(request: RequestHistory) -> bytes:
    """Requests with another adapter or salt share nothing."""
    return blake2b(
        repr((request.record["lora"], request.record["salt"])).encode("utf-8", "surrogatepass")
    ).digest()


def _last_seals(reader: TraceReader, step: int) -> dict[int, Place]:
    """Of every block, the last seal up to a step, as a place in its request's sequence."""
    changes = reader.changes
    end = int(np.searchsorted(np.array(changes.step), step, side="right"))
    kinds = np.array(changes.kind[:end])
    where = np.flatnonzero(kinds == _SEAL)
    blocks, numbers, steps = (
        np.array(column[:end])[where] for column in (changes.block, changes.request, changes.step)
    )
    last = {int(block): position for position, block in enumerate(blocks)}
    places: dict[int, Place] = {}
    for block, position in last.items():
        number = int(numbers[position])
        if number == NOBODY:
            continue
        index = _position(
            reader.requests[number].last_stay(int(steps[position])), block, int(steps[position])
        )
        if index is not None:
            places[block] = Place(number, index)
    return places


def _position(stay: Stay | None, block: int, step: int) -> int | None:
    """Where a block stood in a table. With a sliding window it may have come twice: the last time counts."""
    if stay is None:
        return None
    come = bisect_right(stay.block_steps, step)
    return next((index for index in reversed(range(come)) if stay.blocks[index] == block), None)


def short(value: int | bytes | None) -> str:
    """The first 8 hex digits of a hash, as the engine prints it; an em dash for none."""
    if not value:
        return "—"
    data = value if isinstance(value, bytes) else value.to_bytes(HASH_BYTES, sys.byteorder)
    return data[:4].hex()


def request_names(reader: TraceReader, numbers: Sequence[int]) -> list[str]:
    return [reader.requests[number].request_id for number in numbers]

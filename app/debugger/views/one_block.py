"""One block: the chain of hashes from the root to it, its children, and its history.

    root <- 9f3a <- 77c0 <- e1d4       parents: what must be found before this block can be hit
                              ^- 0b52  children: blocks whose content follows it

A prefix hit walks the chain from the root and stops at the first content that the cache does not hold. A block whose
parent was evicted is therefore cached and cannot be hit: `is_reachable` says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from app.debugger.views.contents import Contents, Key, Place
from engine.trace.blocks import NO_REQUEST
from engine.trace.format import BLOCK_EVENTS
from engine.trace.protocol import Trace


@dataclass(frozen=True)
class Link:
    """One content of a chain."""

    index: int
    """Index in the sequence; 0 is the first block."""
    hash: int | None
    """None: the block is not full, or no block with this content is published."""
    block: int | None
    """The block that a prefix hit reuses; else the one in the owner's table; None: no block holds the content."""
    is_published: bool
    """Whether a prefix hit can reuse it."""


@dataclass(frozen=True)
class Chain:
    place: Place
    """The request and index from whose sequence the chain was read."""
    links: list[Link]
    """The contents from the root to the block, inclusive."""
    children: list[int]
    """Blocks with the next content, by id."""

    @property
    def is_reachable(self) -> bool:
        """Whether a prefix hit can reach this block."""
        return all(link.is_published for link in self.links)


def chain(contents: Contents, block: int) -> Chain | None:
    """The chain of a block; None if it has no content, or content from a transfer, which the trace does not explain."""
    place = contents.place(block)
    if place is None:
        return None
    links = [_link(contents, Place(place.number, index)) for index in range(place.index)]
    value = contents.blocks.hash[block] or None
    links.append(Link(place.index, value, block, value is not None))
    return Chain(place, links, children(contents, contents.key(place), place.index, block))


def _link(contents: Contents, place: Place) -> Link:
    key = contents.key(place)
    if isinstance(key, int):
        return Link(place.index, key, contents.block_of[key], True)
    table = contents.tables.get(place.number, [])
    held = table[place.index] if place.index < len(table) else 0
    return Link(place.index, None, held or None, False)


def children(contents: Contents, key: Key, index: int, block: int) -> list[int]:
    """Blocks after a content in any sequence: held, or cached and free."""
    blocks = {
        table[index + 1]
        for number, table in contents.tables.items()
        if index + 1 < len(table) and table[index + 1] and contents.key(Place(number, index)) == key
    }
    for cached in contents.block_of.values():
        place = contents.place(cached)
        if place is not None and place.index == index + 1:
            if contents.key(Place(place.number, index)) == key:
                blocks.add(cached)
    return sorted(blocks - {block})


MEANING = {
    "alloc": "taken from the free queue",
    "ref": "reused by a prefix hit: reference count + 1",
    "unref": "released; others still hold it",
    "free": "released by the last owner: joins the free queue",
    "seal": "full and written: its hash is published",
    "evict": "its hash leaves the prefix cache",
}


class BlockEvent(NamedTuple):
    step: int
    kind: str
    """One of BLOCK_EVENTS."""
    number: int | None
    """The request; None for a transfer or a reset of the cache."""
    ref: int
    """Reference count after it."""
    hash_hex: str | None
    """First bytes of the published hash after it."""


def history(reader: Trace, block: int) -> list[BlockEvent]:
    """All events of a block in the whole run, in order."""
    changes = reader.changes
    where = np.flatnonzero(np.asarray(changes.block) == block).tolist()
    events: list[BlockEvent] = []
    ref, hash_hex = 0, None
    for at in where:
        step, kind, number = int(changes.step[at]), BLOCK_EVENTS[changes.kind[at]], int(changes.request[at])
        ref = {"alloc": 1, "ref": ref + 1, "unref": ref - 1, "free": 0}.get(kind, ref)
        if kind == "seal":
            content = reader.content_before(block, step + 1)
            hash_hex = None if content is None else content.hash_hex
        elif kind == "evict":
            hash_hex = None
        events.append(BlockEvent(step, kind, None if number == NO_REQUEST else number, ref, hash_hex))
    return events


def last_touch(contents: Contents, block: int) -> int | None:
    """The last step up to now in which a block was used: an owner's last row or, for a free block, the step in which
    its last owner released it. None: it was never used."""
    owners = contents.owners.get(block)
    if owners:
        rows = [
            request.row_steps[row]
            for request in (contents.reader.requests[place.number] for place in owners)
            if (row := request.row_before(contents.step)) >= 0
        ]
        return max(rows, default=None)
    freed = [
        event.step
        for event in history(contents.reader, block)
        if event.kind == "free" and event.step <= contents.step
    ]
    return freed[-1] if freed else None

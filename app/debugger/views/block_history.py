"""The history of one block: every event with its request, and the last use."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.debugger.views.contents import Contents
from engine.trace.blocks import NO_REQUEST
from engine.trace.format import BLOCK_EVENTS
from engine.trace.protocol import Trace

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

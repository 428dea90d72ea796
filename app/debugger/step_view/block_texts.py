"""The tokens in each block, for the large cells of the block map and its tooltip.

A block's content has a place: an entry of the table of the request that allocated it. A prefix hit changes the owners
and not the place, so the place of a block is that of its last allocation.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from app.debugger.views.contents import position
from engine.trace.blocks import NO_REQUEST
from engine.trace.format import BLOCK_EVENTS
from engine.trace.protocol import Trace

MAX_BLOCKS = 400
"""Cells of larger runs have no room for text."""
_ALLOC = BLOCK_EVENTS.index("alloc")


def block_texts(reader: Trace, first: int, last: int) -> dict[str, Any]:
    """places: block -> [[step, request id or null, its number, entry of its table], ...], each from that step on, for
    steps first .. last - 1; null: the content came by a transfer. tokens: number -> token ids up to step last - 1.
    Both are empty for a run with many blocks."""
    if reader.num_blocks > MAX_BLOCKS:
        return {"places": {}, "tokens": {}}
    changes = reader.changes
    end = int(np.searchsorted(np.asarray(changes.step), last))
    where = np.flatnonzero(np.asarray(changes.kind)[:end] == _ALLOC)
    columns = (
        np.asarray(column)[where].tolist() for column in (changes.step, changes.block, changes.request)
    )
    places: dict[int, list[list[Any]]] = {}
    for step, block, number in zip(*columns, strict=True):
        entries = places.setdefault(block, [])
        if entries and (step <= first or entries[-1][0] == step):
            entries.pop()
        request = None if number == NO_REQUEST else reader.requests[number]
        index = None if request is None else position(request.last_stay(step), block, step)
        name = None if request is None or index is None else request.request_id
        entries.append([step, name, number, index])
    numbers = {entry[2] for entries in places.values() for entry in entries if entry[1] is not None}
    return {"places": places, "tokens": {number: _tokens(reader, number, last - 1) for number in numbers}}


def _tokens(reader: Trace, number: int, step: int) -> list[int]:
    """The tokens that a request knew after a step."""
    request = reader.requests[number]
    return [*request.record["prompt"], *request.tokens[: request.num_outputs_at(step)]]

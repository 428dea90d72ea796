"""The order in which free blocks are reused, and the cached content of each."""

from __future__ import annotations

from typing import NamedTuple

from app.debugger.views.contents import Contents, Place


class Free(NamedTuple):
    """A free block."""

    place: int
    """Place in the queue: 1 is reused next."""
    block: int
    hash: int
    """Hash of its cached content; 0 without one."""
    content: Place | None
    """The place of its cached tokens; None without content, or if it came by a transfer."""


def eviction_order(contents: Contents, only_cached: bool = False, limit: int | None = None) -> list[Free]:
    """The free blocks in the order of reuse."""
    hashes = contents.blocks.hash
    queue = [
        (place, block)
        for place, block in enumerate(contents.blocks.free_queue(), start=1)
        if hashes[block] or not only_cached
    ]
    return [Free(place, block, hashes[block], contents.place(block)) for place, block in queue[:limit]]

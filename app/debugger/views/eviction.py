"""In which order free blocks are reused, and what would be lost with each."""

from __future__ import annotations

from typing import NamedTuple

from app.debugger.views.contents import Contents, Place


class Free(NamedTuple):
    """A free block."""

    place: int
    """In the queue: 1 is reused next."""
    block: int
    hash: int
    """Of its cached content; 0: nothing is lost with it."""
    content: Place | None
    """Whose tokens it still holds; None without content, or if it came by a transfer."""


def eviction_order(contents: Contents, only_cached: bool = False, limit: int | None = None) -> list[Free]:
    """The free blocks, the one that is reused next first."""
    hashes = contents.blocks.hash
    queue = [
        (place, block)
        for place, block in enumerate(contents.blocks.free_queue(), start=1)
        if hashes[block] or not only_cached
    ]
    return [Free(place, block, hashes[block], contents.place(block)) for place, block in queue[:limit]]

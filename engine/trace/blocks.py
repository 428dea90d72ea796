"""The blocks of a recorded run as columns: every change, and all blocks at one moment."""

from __future__ import annotations

import sys
from array import array
from functools import cached_property
from typing import NamedTuple

from engine.trace.format import HASH_BYTES

NO_REQUEST = -1  # in place of a request number: no owner, or a transfer of the KV connector
NULL_BLOCK = 0  # the block that is never allocated


class BlockColumns(NamedTuple):
    """State of blocks, one entry per block or per change of a block."""

    ref: array[int]
    owner: array[int]  # number of the request that has held the block longest, or NO_REQUEST
    hash: array[int]  # the `HASH_BYTES` bytes as they are in memory; 0 without a hash
    rank: array[int]  # place in the free queue if the reference count is 0: the smallest is reused first

    @classmethod
    def fresh(cls, num_blocks: int) -> BlockColumns:
        """All blocks free and uncached, the free queue in the order of the ids."""
        nothing = array("i", [0]) * num_blocks
        owners = array("i", [NO_REQUEST]) * num_blocks
        return cls(nothing, owners, array("Q", nothing), array("q", range(num_blocks)))

    def copy(self) -> BlockColumns:
        return BlockColumns(*(column[:] for column in self))


class BlockChanges:
    """Every change of every block, in order: the event, and the block's state after it."""

    def __init__(self) -> None:
        self.step = array("i")
        self.kind = array("b")  # index into BLOCK_EVENTS
        self.request = array("i")  # number of the request that the event names, or NO_REQUEST
        self.block = array("i")
        self.after = BlockColumns(array("i"), array("i"), array("Q"), array("q"))

    def __len__(self) -> int:
        return len(self.block)


class Blocks:
    """All blocks at one moment: a keyframe and the changes since. Columns are computed on first use."""

    def __init__(self, keyframe: BlockColumns, changes: BlockChanges, since: slice) -> None:
        self._keyframe = keyframe
        self._changes = changes
        self._since = since

    @cached_property
    def ref(self) -> array[int]:
        """Reference count, by block id."""
        return self._play("ref")

    @cached_property
    def owner(self) -> array[int]:
        """Number of the request that has held the block longest, or NO_REQUEST, by block id."""
        return self._play("owner")

    @cached_property
    def hash(self) -> array[int]:
        """First bytes of the published hash as an integer, by block id; 0 without one."""
        return self._play("hash")

    def hash_hex(self, block: int) -> str | None:
        """The first bytes of a block's published hash."""
        value = self.hash[block]
        return value.to_bytes(HASH_BYTES, sys.byteorder).hex() if value else None

    def free_queue(self) -> list[int]:
        """The free blocks without the null block, in the order in which they are reused."""
        rank = self._play("rank")
        free = [block for block, ref in enumerate(self.ref) if ref == 0 and block != NULL_BLOCK]
        return sorted(free, key=rank.__getitem__)

    def _play(self, name: str) -> array[int]:
        column: array[int] = getattr(self._keyframe, name)[:]
        values = getattr(self._changes.after, name)[self._since]
        for block, value in zip(self._changes.block[self._since], values, strict=True):
            column[block] = value
        return column

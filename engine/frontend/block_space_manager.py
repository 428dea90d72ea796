"""vLLM V0's block manager: sequences share blocks and copy one before they write into it (copy on write).

V1 shares only full blocks, which are never written again, so it copies nothing. V0 let a fork share its parent's last,
half-full block too, and copied that block when one of them wrote the next token:

    fork        parent  [ b0 | b1 ]        child  [ b0 | b1 ]        b0 and b1 have two owners
    append      parent  [ b0 | b1 ]        child  [ b0 | b2 ]        b1 was copied to b2, then written
    append      parent  [ b0 | b1 ]                                  b1 has one owner again: no copy

It mattered for beam search. The engine does not use this class: `frontend/beam_search.py` counts blocks with it to
compare the two designs, and interviews ask for it.
Sources: PagedAttention (Kwon et al. 2023, section 4.4); vLLM 0.6 core/block_manager_v1.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from enum import Enum

from engine.core.blocks import Block, BlockPool


class AllocStatus(Enum):
    """Answer to whether a prompt can get its blocks."""

    OK = "ok"
    LATER = "later"  # Other sequences hold the blocks now
    NEVER = "never"  # The prompt does not fit into an empty pool


class BlockSpaceManager:
    """Block tables by sequence, on a device pool and, for swapped sequences, a host pool.

    A sequence is any hashable name. A method that raises has changed nothing: KeyError for an unknown sequence,
    ValueError for a name in use, `OutOfBlocks` if the pool is too small.
    """

    def __init__(self, num_device_blocks: int, num_host_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.device = BlockPool(num_device_blocks + 1)  # including its null block
        self.host = BlockPool(num_host_blocks + 1)
        self.num_copies = 0  # Blocks copied on write so far
        self._tables: dict[Hashable, list[Block]] = {}
        self._num_tokens: dict[Hashable, int] = {}
        self._swapped: set[Hashable] = set()

    @property
    def num_used_blocks(self) -> int:
        """Device blocks in use, shared ones counted once."""
        return self.device.num_used

    def block_table(self, seq: Hashable) -> list[int]:
        return [block.block_id for block in self._tables[seq]]

    def num_tokens(self, seq: Hashable) -> int:
        return self._num_tokens[seq]

    # -- allocate, append, fork, free

    def can_allocate(self, num_tokens: int) -> AllocStatus:
        need = self._num_blocks(num_tokens)
        if need > self.device.num_usable:
            return AllocStatus.NEVER
        return AllocStatus.OK if need <= len(self.device.free) else AllocStatus.LATER

    def allocate(self, seq: Hashable, num_tokens: int) -> None:
        """Allocate blocks for a prompt of `num_tokens` tokens."""
        self._check_new(seq)
        self._tables[seq] = self.device.take(self._num_blocks(num_tokens))
        self._num_tokens[seq] = num_tokens

    def append_slot(self, seq: Hashable) -> tuple[int, int] | None:
        """Make room for one more token. Return (source, target) if a shared block must be copied first."""
        self._check_resident(seq)
        table, num_tokens = self._tables[seq], self._num_tokens[seq]
        copy = None
        if num_tokens == len(table) * self.block_size:
            table += self.device.take(1)
        elif table[-1].ref_count > 1:
            shared = table[-1]
            (own,) = self.device.take(1)
            table[-1] = own
            self.device.release([shared])
            self.num_copies += 1
            copy = (shared.block_id, own.block_id)
        self._num_tokens[seq] = num_tokens + 1
        return copy

    def fork(self, parent: Hashable, child: Hashable) -> None:
        """Add a sequence with the same tokens, which shares every block, the last one included."""
        self._check_resident(parent)
        self._check_new(child)
        for block in self._tables[parent]:
            self.device.touch(block)
        self._tables[child] = list(self._tables[parent])
        self._num_tokens[child] = self._num_tokens[parent]

    def free(self, seq: Hashable) -> None:
        """Free the blocks that no other sequence shares."""
        pool = self.host if seq in self._swapped else self.device
        pool.release(self._tables.pop(seq))
        del self._num_tokens[seq]
        self._swapped.discard(seq)

    # -- swapping

    def can_swap_out(self, seq: Hashable) -> bool:
        return len(self._tables[seq]) <= len(self.host.free)

    def swap_out(self, seq: Hashable) -> list[tuple[int, int]]:
        """Move a sequence to the host; return (device block, host block) pairs to copy. Shared blocks stay."""
        self._check_resident(seq)
        pairs = self._move(seq, self.device, self.host)
        self._swapped.add(seq)
        return pairs

    def can_swap_in(self, seq: Hashable) -> bool:
        return len(self._tables[seq]) <= len(self.device.free)

    def swap_in(self, seq: Hashable) -> list[tuple[int, int]]:
        """Move a sequence back; return (host block, device block) pairs to copy."""
        if seq not in self._swapped:
            raise ValueError(f"sequence {seq!r} is not swapped out")
        pairs = self._move(seq, self.host, self.device)
        self._swapped.discard(seq)
        return pairs

    def _move(self, seq: Hashable, source: BlockPool, target: BlockPool) -> list[tuple[int, int]]:
        old = self._tables[seq]
        new = target.take(len(old))
        source.release(old)
        self._tables[seq] = new
        return [(a.block_id, b.block_id) for a, b in zip(old, new, strict=True)]

    # -- checks

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _check_new(self, seq: Hashable) -> None:
        if seq in self._tables:
            raise ValueError(f"there is a sequence {seq!r} already; free it first")

    def _check_resident(self, seq: Hashable) -> None:
        if seq in self._swapped:
            raise ValueError(f"sequence {seq!r} is swapped out; swap it in first")
        if seq not in self._tables:
            raise KeyError(seq)

    def check_integrity(self) -> list[str]:
        """Return violations of the invariant: a block's ref_count is the number of tables that hold it."""
        problems = self.device.check_integrity() + self.host.check_integrity()
        for pool, swapped in ((self.device, False), (self.host, True)):
            tables = [table for seq, table in self._tables.items() if (seq in self._swapped) == swapped]
            owners = Counter(block.block_id for table in tables for block in table)
            wrong = [block for block in pool.blocks if block.ref_count != owners[block.block_id]]
            problems += [f"{block} has {owners[block.block_id]} tables" for block in wrong]
        return problems

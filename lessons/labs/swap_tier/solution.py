"""Lab swap-tier: keep KV blocks in host memory after the GPU has evicted them.

The seam is the host tier (engine/core/host_tier.py). A prefix cache on the GPU evicts a block when it needs the room.
Its content can be copied to host memory first, and a later request with the same prefix copies it back, which is faster
than computing it. Your class decides which host block a copy goes to, finds prefixes, and protects the blocks of
copies that still run. A hash names the content of a block and of all blocks before it, so hashes form chains.

    prompt        h0   h1   h2   h3   h4        match([h0, h1, h2, h3, h4], 2) -> [5, 0]
    on the GPU    yes  yes                      the GPU has 2 blocks, the host continues with h2 and h3; h4 is computed
    on the host             5    0              load([5, 0]) ... copies run ... loaded([5, 0])

    a host block     empty --store--> being written --stored--> readable <--load, loaded--> being read
                       ^------------- stored(ok=False)            |
                       (replaced by `store`, when it is the least recently used one without a copy)

Sources: PagedAttention (Kwon et al., SOSP 2023), section 4.5; vLLM v1/kv_offload/cpu/manager.py and policies/lru.py.
"""

from __future__ import annotations

from collections import Counter, OrderedDict


class HostTier:
    """Host blocks by hash, their order of use, and the copies that run."""

    def __init__(self, num_blocks: int) -> None:
        """num_blocks: number of host blocks, at least 1, numbered from 0; all are empty."""
        self.num_blocks = num_blocks
        self.empty = list(range(num_blocks - 1, -1, -1))
        self.block_of: OrderedDict[bytes, int] = OrderedDict()
        """Blocks by hash, the least recently used first."""
        self.hash_of: dict[int, bytes] = {}
        self.writing: set[int] = set()
        self.readers: Counter[int] = Counter()
        """Running loads by block, without zeros."""

    @property
    def num_free(self) -> int:
        """Number of blocks that no copy reads or writes, with content or empty."""
        return self.num_blocks - len(self.writing) - len(self.readers)

    def match(self, hashes: list[bytes], start: int) -> list[int]:
        """Return the host blocks that continue a prefix of which the GPU has the first `start` blocks.

        They are the blocks of hashes[start], hashes[start + 1], ... up to the first hash without a readable block: a
        block that is being written is not readable, one that is being read is. Changes nothing.
        """
        found: list[int] = []
        for block_hash in hashes[start:]:
            block = self.block_of.get(block_hash)
            if block is None or block in self.writing:
                break
            found.append(block)
        return found

    def store(self, block_hash: bytes) -> int | None:
        """Return the host block to which a block of this hash is copied, or None for no copy. The GPU evicts it next.

        None if a host block has this hash, readable or being written: that block is now the most recently used. None,
        and nothing changes, if a copy reads or writes every block.
        Otherwise an empty block is taken, whichever; without one, the least recently used of the blocks that no copy
        reads or writes, whose content is lost. The block is being written until `stored`, and is now the most recently
        used.
        """
        if block_hash in self.block_of:
            self.block_of.move_to_end(block_hash)
            return None
        block = self._take()
        if block is not None:
            self.block_of[block_hash] = block
            self.hash_of[block] = block_hash
            self.writing.add(block)
        return block

    def _take(self) -> int | None:
        """Return an empty block, or empty the least recently used one that no copy reads or writes."""
        if self.empty:
            return self.empty.pop()
        for block_hash, block in self.block_of.items():
            if block not in self.writing and block not in self.readers:
                del self.block_of[block_hash]
                return block
        return None

    def stored(self, block: int, ok: bool) -> None:
        """The copy to this block has ended. ok: it is readable from now on; otherwise it is empty.

        The order of use does not change. Raises ValueError, and changes nothing, if the block is not being written.
        """
        if block not in self.writing:
            raise ValueError(f"block {block} is not being written")
        self.writing.remove(block)
        if not ok:
            del self.block_of[self.hash_of.pop(block)]
            self.empty.append(block)

    def load(self, blocks: list[int]) -> None:
        """Copies from these blocks, as `match` returned them, begin. Several loads may read one block at a time.

        They are the most recently used blocks now, the first of them the most recent: a prefix is of no use without
        its start, so its end is replaced first. Raises ValueError, and changes nothing, if one of them is not readable.
        """
        for block in blocks:
            if block not in self.hash_of or block in self.writing:
                raise ValueError(f"block {block} is not readable")
        for block in reversed(blocks):
            self.readers[block] += 1
            self.block_of.move_to_end(self.hash_of[block])

    def loaded(self, blocks: list[int]) -> None:
        """The copies of one `load` with these blocks have ended. The order of use does not change.

        Raises ValueError, and changes nothing, if one of the blocks is not being read.
        """
        for block in blocks:
            if block not in self.readers:
                raise ValueError(f"block {block} is not being read")
        self.readers -= Counter(blocks)

"""Lab swap-tier: keep evicted KV blocks in host memory, and find a prefix over both tiers.

The seam is the host tier (engine/core/host_tier.py). Before the device's prefix cache reuses a block, its content can
be copied to host memory; a later request copies it back instead of computing it again. The copies run within a step. A
host block that a step writes or reads is pinned until that step has ended, so nothing else is copied there meanwhile.

    the device evicts h1       store(7, h1) -> 3      step 7 copies it to host block 3; it is not findable yet
    step 7 has ended           finish(7)              block 3 holds h1: findable, free, and reusable
    a prompt has h0, h1, h2    match([h0, h1, h2], {h0}) -> (1, [3])       share h0, copy in h1, compute h2
    it starts in step 9        load(9, [3])           block 3 is not reused before finish(9)

A block's hash covers all tokens before the block too, so a chain of blocks is useful only from its start, and its end
should be reused first. Sources: vLLM v1/kv_offload/cpu (manager.py, policies/lru.py); PagedAttention (Kwon et al.
2023), section 4.5.

A host block is free or pinned, and it has content (one hash) or none. Host blocks are 1 to num_blocks.
"""

from __future__ import annotations

from collections import Counter, OrderedDict


class HostTier:
    """Content, pins and the order of reuse of the blocks in host memory."""

    def __init__(self, num_blocks: int) -> None:
        """Start with num_blocks free blocks without content, at least 1."""
        self.empty = list(range(num_blocks, 0, -1))
        """Free blocks without content."""
        self.idle: OrderedDict[int, None] = OrderedDict()
        """Free blocks with content, in the order in which they became free."""
        self.content: dict[int, bytes] = {}
        self.block_of: dict[bytes, int] = {}
        """The inverse of content: what `match` finds."""
        self.pins: Counter[int] = Counter()
        self.stored: dict[int, list[tuple[int, bytes]]] = {}
        """Unfinished step -> the blocks that it writes, with their future content."""
        self.loaded: dict[int, list[int]] = {}
        """Unfinished step -> the blocks that it reads."""
        self.writing: set[bytes] = set()

    @property
    def num_free(self) -> int:
        """Number of blocks without a pin, with content or without."""
        return len(self.empty) + len(self.idle)

    def match(self, hashes: list[bytes], device: set[bytes]) -> tuple[int, list[int]]:
        """Find the prefix of a chain that need not be computed: first a part on the device, then a part on the host.

        hashes: the chain, from its start. device: all hashes that the device's cache holds.
        Returns the number of leading hashes that are in `device`, and the host blocks of the hashes that follow, up to
        the first one that no host block holds (even if it is in `device`: a hit changes tiers only once). Changes
        nothing, the order of reuse included.
        """
        start = 0
        while start < len(hashes) and hashes[start] in device:
            start += 1
        found: list[int] = []
        for each in hashes[start:]:
            if (block := self.block_of.get(each)) is None:
                break
            found.append(block)
        return start, found

    def store(self, step: int, block_hash: bytes) -> int | None:
        """Choose the host block to which step `step` copies this content, and pin it.

        Free blocks without content come first, in any order, then those with content, in the order in which they became
        free; the old content is forgotten at once. Returns None, and changes nothing, if a host block holds this
        content already, if an unfinished step is storing it, or if no block is free.
        """
        if block_hash in self.block_of or block_hash in self.writing or not self.num_free:
            return None
        if self.empty:
            block = self.empty.pop()
        else:
            block, _ = self.idle.popitem(last=False)
            del self.block_of[self.content.pop(block)]
        self.pins[block] += 1
        self.writing.add(block_hash)
        self.stored.setdefault(step, []).append((block, block_hash))
        return block

    def load(self, step: int, blocks: list[int]) -> None:
        """Pin blocks with content that step `step` reads, in the order of `match`.

        A block may have several pins: two requests of one step, or of two steps, may read it. Raises ValueError, and
        changes nothing, if a block has no content: a block that is still being stored has none.
        """
        if any(block not in self.content for block in blocks):
            raise ValueError(f"a block of {blocks} has no content")
        for block in blocks:
            self.idle.pop(block, None)
            self.pins[block] += 1
        self.loaded.setdefault(step, []).extend(blocks)

    def finish(self, step: int) -> None:
        """End step `step`: the contents that it stored can be found from now on, and its pins are dropped.

        A block becomes free with its last pin. Within a step the stored blocks come first, in the order of the calls of
        `store`, then all blocks passed to `load`, from the last to the first. Several steps may be unfinished; they end
        in the order of their numbers. One with a smaller number that did not end has failed, so it is dropped before,
        the smallest number first: its pins are dropped in the same way, and the blocks that it stored have no content.
        A step without copies is no error.
        """
        for each in sorted(number for number in {*self.stored, *self.loaded} if number <= step):
            stored = self.stored.pop(each, [])
            for block, block_hash in stored:
                self.writing.discard(block_hash)
                if each == step:
                    self.content[block], self.block_of[block_hash] = block_hash, block
            for block in [*(block for block, _ in stored), *reversed(self.loaded.pop(each, []))]:
                self._unpin(block)

    def _unpin(self, block: int) -> None:
        self.pins[block] -= 1
        if self.pins[block]:
            return
        if block in self.content:
            self.idle[block] = None
        else:
            self.empty.append(block)

"""Lab prefix-cache: find computed KV blocks again by their content, and evict the least recently used.

The engine asks this object before a request starts: which blocks of its prompt are already computed? The request shares
them and computes only the rest. Its own full blocks become findable when they are written (`publish`). A block that no
request owns stays findable until `allocate` takes it for something else: that is an eviction.

    block_size = 4         a b c d | e f g h | i j          hashes: 2, one for each full block
    first request          allocate([], 3) -> [1, 2, 3]     publish(1, h0), publish(2, h1)
    it ends                release([1, 2, 3])               reused first: 3 (no content), last: 1 (a hit starts there)
    the same prompt        match([h0, h1], 10) -> [1, 2]    allocate([1, 2], 1) -> [3]

A block is owned (by one request or more) or free, and it has a hash (it is findable) or none. Blocks are 1 to
num_blocks - 1: block 0 is the null block, never handed out. A table is a request's list of blocks, in token order.
"""

from __future__ import annotations


class PrefixCache:
    """Owners, hashes and the eviction order of the blocks of a KV cache."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        """Start with num_blocks - 1 free blocks without a hash."""
        raise NotImplementedError("write PrefixCache")

    @property
    def num_free(self) -> int:
        """Number of blocks without an owner, with a hash or without."""
        raise NotImplementedError("write num_free")

    def hashes(
        self, token_ids: list[int], salt: str | None = None, adapter: str | None = None
    ) -> list[bytes]:
        """Return a digest of at least 16 bytes for each full block; a partial last block has none.

        Two blocks have equal digests exactly if their tokens, all tokens before them, the salt and the adapter are
        equal. Token ids are 0 to 2**63 - 1. Salt and adapter are None or any non-empty string: a user chooses the salt.
        """
        raise NotImplementedError("write hashes")

    def match(self, hashes: list[bytes], num_tokens: int) -> list[int]:
        """Return the blocks of the longest findable prefix of `hashes`, for a request of `num_tokens` tokens.

        It never covers all tokens: at least one must be computed, or there are no logits to sample from. Changes
        nothing: eviction order and owners stay the same.
        """
        raise NotImplementedError("write match")

    def allocate(self, hit: list[int], count: int) -> list[int] | None:
        """Add an owner to each block of a hit, as `match` returned it, and take `count` other free blocks.

        Returns the `count` blocks: each has one owner and no hash. Free blocks without a hash are taken first, in any
        order, then those with a hash, in the order in which they became free. Returns None and changes nothing if too
        few are free besides those of the hit. A request that grows passes [] as its hit; `count` may be 0.
        """
        raise NotImplementedError("write allocate")

    def publish(self, block: int, block_hash: bytes) -> bool:
        """Make an owned block without a hash findable: its tokens are written.

        Returns False and changes nothing if another block already stands for this hash. (vLLM keeps both findable.)
        """
        raise NotImplementedError("write publish")

    def release(self, table: list[int]) -> None:
        """Drop one owner of each block of a table. A block without owners becomes free; it keeps its hash.

        The blocks become free from the last to the first, so that the end of a prefix is evicted before its start.
        Raises ValueError and changes nothing if one of the blocks has no owner.
        """
        raise NotImplementedError("write release")

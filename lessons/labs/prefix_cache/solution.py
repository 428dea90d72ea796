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

from collections import OrderedDict
from hashlib import sha256


class PrefixCache:
    """Owners, hashes and the eviction order of the blocks of a KV cache."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        """Start with num_blocks - 1 free blocks without a hash."""
        self._size = block_size
        self._owners = [0] * num_blocks
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        self._free = OrderedDict.fromkeys(range(1, num_blocks))  # the first is taken next

    @property
    def num_free(self) -> int:
        """Number of blocks without an owner, with a hash or without."""
        return len(self._free)

    def hashes(
        self, token_ids: list[int], salt: str | None = None, adapter: str | None = None
    ) -> list[bytes]:
        """Return a digest of at least 16 bytes for each full block; a partial last block has none.

        Two blocks have equal digests exactly if their tokens, all tokens before them, the salt and the adapter are
        equal. Token ids are 0 to 2**63 - 1. Salt and adapter are None or any non-empty string: a user chooses the salt.
        """
        parent = sha256(repr((salt, adapter)).encode("utf-8", "surrogatepass")).digest()
        found = []
        for start in range(0, len(token_ids) - self._size + 1, self._size):
            tokens = token_ids[start : start + self._size]
            parent = sha256(parent + b"".join(token.to_bytes(8, "little") for token in tokens)).digest()
            found.append(parent)
        return found

    def match(self, hashes: list[bytes], num_tokens: int) -> list[int]:
        """Return the blocks of the longest findable prefix of `hashes`, for a request of `num_tokens` tokens.

        It never covers all tokens: at least one must be computed, or there are no logits to sample from. Changes
        nothing: eviction order and owners stay the same.
        """
        found = []
        for each in hashes[: (num_tokens - 1) // self._size]:
            if each not in self._block_of:
                break
            found.append(self._block_of[each])
        return found

    def allocate(self, hit: list[int], count: int) -> list[int] | None:
        """Add an owner to each block of a hit, as `match` returned it, and take `count` other free blocks.

        Returns the `count` blocks: each has one owner and no hash. Free blocks without a hash are taken first, in any
        order, then those with a hash, in the order in which they became free. Returns None and changes nothing if too
        few are free besides those of the hit. A request that grows passes [] as its hit; `count` may be 0.
        """
        revived = sum(self._owners[block] == 0 for block in hit)
        if count > len(self._free) - revived:
            return None
        for block in hit:
            self._free.pop(block, None)
            self._owners[block] += 1
        return [self._take() for _ in range(count)]

    def publish(self, block: int, block_hash: bytes) -> bool:
        """Make an owned block without a hash findable: its tokens are written.

        Returns False and changes nothing if another block already stands for this hash. (vLLM keeps both findable.)
        """
        if block_hash in self._block_of:
            return False
        self._block_of[block_hash] = block
        self._hash_of[block] = block_hash
        return True

    def release(self, table: list[int]) -> None:
        """Drop one owner of each block of a table. A block without owners becomes free; it keeps its hash.

        The blocks become free from the last to the first, so that the end of a prefix is evicted before its start.
        Raises ValueError and changes nothing if one of the blocks has no owner.
        """
        if any(self._owners[block] == 0 for block in table):
            raise ValueError(f"a block of {table} has no owner")
        for block in reversed(table):
            self._owners[block] -= 1
            if self._owners[block] == 0:
                self._free[block] = None
                if self._hash_of[block] is None:
                    self._free.move_to_end(block, last=False)

    def _take(self) -> int:
        block, _ = self._free.popitem(last=False)
        if (old := self._hash_of[block]) is not None:
            del self._block_of[old]
            self._hash_of[block] = None
        self._owners[block] = 1
        return block

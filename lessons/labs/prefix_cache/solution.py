"""Solution of lab prefix-cache. The docstrings of the stub state the contract."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import sha256


class PrefixCache:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._size = block_size
        self._owners = [0] * num_blocks
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        self._free = OrderedDict.fromkeys(range(1, num_blocks))  # the first is taken next

    @property
    def num_free(self) -> int:
        return len(self._free)

    def hashes(
        self, token_ids: list[int], salt: str | None = None, adapter: str | None = None
    ) -> list[bytes]:
        parent = sha256(repr((salt, adapter)).encode("utf-8", "surrogatepass")).digest()
        found = []
        for start in range(0, len(token_ids) - self._size + 1, self._size):
            tokens = token_ids[start : start + self._size]
            parent = sha256(parent + b"".join(token.to_bytes(8, "little") for token in tokens)).digest()
            found.append(parent)
        return found

    def match(self, hashes: list[bytes], num_tokens: int) -> list[int]:
        found = []
        for each in hashes[: (num_tokens - 1) // self._size]:
            if each not in self._block_of:
                break
            found.append(self._block_of[each])
        return found

    def allocate(self, hit: list[int], count: int) -> list[int] | None:
        revived = sum(self._owners[block] == 0 for block in hit)
        if count > len(self._free) - revived:
            return None
        for block in hit:
            self._free.pop(block, None)
            self._owners[block] += 1
        return [self._take() for _ in range(count)]

    def publish(self, block: int, block_hash: bytes) -> bool:
        if block_hash in self._block_of:
            return False
        self._block_of[block_hash] = block
        self._hash_of[block] = block_hash
        return True

    def release(self, table: list[int]) -> None:
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

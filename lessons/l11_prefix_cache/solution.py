"""Reference solutions of lesson 11."""

# ruff: noqa: E402

# exercise 11.1
from array import array
from hashlib import sha256


def block_hashes(token_ids: list[int], block_size: int, salt: bytes = b"") -> list[bytes]:
    parent = sha256(b"salt" + salt).digest()  # tagged: no salt can imitate a block
    hashes = []
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        block = array("q", token_ids[start : start + block_size]).tobytes()  # 8 bytes per token
        parent = sha256(b"block" + parent + block).digest()
        hashes.append(parent)
    return hashes


# exercise 11.2
class PrefixCache:
    def __init__(self) -> None:
        self._block_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}
        self._evictable: dict[int, None] = {}  # least recently released first

    def __len__(self) -> int:
        return len(self._block_of)

    def match(self, hashes: list[bytes]) -> list[int]:
        blocks = []
        for block_hash in hashes:
            if block_hash not in self._block_of:
                break
            blocks.append(self._block_of[block_hash])
        return blocks

    def insert(self, block_hash: bytes, block: int) -> bool:
        if block_hash in self._block_of:
            return False
        self._block_of[block_hash] = block
        self._hash_of[block] = block_hash
        return True

    def touch(self, block: int) -> None:
        self._evictable.pop(block, None)

    def release(self, block: int) -> None:
        if block in self._hash_of:
            self._evictable.pop(block, None)
            self._evictable[block] = None

    def evict(self) -> int | None:
        if not self._evictable:
            return None
        block = next(iter(self._evictable))
        del self._evictable[block], self._block_of[self._hash_of.pop(block)]
        return block


# exercise 11.3
def hit_tokens(prompts: list[list[int]], block_size: int) -> list[int]:
    seen: set[tuple[int, ...]] = set()  # prefixes that end at a block's end
    hits = []
    for prompt in prompts:
        prefixes = [tuple(prompt[:end]) for end in range(block_size, len(prompt) + 1, block_size)]
        usable = [prefix for prefix in prefixes if len(prefix) < len(prompt)]
        hits.append(sum(block_size for prefix in usable if prefix in seen))
        seen.update(prefixes)
    return hits

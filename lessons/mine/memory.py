"""The learner's allocator, prefix cache and block hashes behind the engine's KV manager.

    engine                       learner
    block id 1 .. n - 1          block id 0 .. n - 2         engine id = learner's id + 1; the null block stays ours
    ref_count > 0                one reference per request   take, share, release
    free and cached              one reference of the cache  release, until evict() returns the block
    free                         free in the allocator

The engine keeps its own record of owners and hashes, and compares it with every answer: a wrong answer becomes a
PieceError, never a wrong token.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from engine.config import CacheConfig
from engine.core.blocks import Block, BlockPool, FreeQueue, OnBlockEvent
from engine.core.errors import OutOfBlocks
from engine.core.hashing import BlockHasher, encode_fields
from engine.core.kv_manager import KVManager, PrefixHit
from engine.core.request import Request
from lessons.mine.errors import PieceError, ask
from lessons.mine.pieces import Pieces
from lessons.mine.workspace import current

MAX_KNOWN_HASHES = 1 << 18
"""Hashes whose content is remembered to detect equal hashes of different prefixes."""


class FreeBlocks(FreeQueue):
    """Count of the blocks without owners, in the place of the engine's free queue. The allocator keeps their order."""

    def __init__(self, pool: MinePool) -> None:
        self._pool = pool

    def __len__(self) -> int:
        return self._pool.num_usable - self._pool.num_owned

    def __iter__(self) -> Iterator[Block]:
        return (block for block in self._pool.blocks[1:] if block.ref_count == 0)

    def __contains__(self, block: Block) -> bool:
        return block.ref_count == 0 and block is not self._pool.null_block


class MinePool(BlockPool):
    """A block pool whose decisions are the learner's: which block is handed out, found, and evicted."""

    def __init__(
        self, num_blocks: int, on_event: OnBlockEvent | None = None, pieces: Pieces | None = None
    ) -> None:
        super().__init__(num_blocks, on_event)
        pieces = current() if pieces is None else pieces
        self._allocator_says, self._cache_says = pieces["allocator"].says, pieces["prefix_cache"].says
        self._allocator: Any = ask(
            self._allocator_says, "making it", pieces["allocator"].item, num_blocks - 1
        )
        self._cache: Any = ask(self._cache_says, "making it", pieces["prefix_cache"].item)
        self.num_owned = 0
        """Blocks that requests own."""
        for block in self.blocks:
            block.prev = block.next = None
        self.free = FreeBlocks(self)

    def match(self, hashes: Sequence[bytes]) -> list[Block]:
        """Return the blocks of the longest prefix that the learner's cache finds."""
        if not hashes:
            return []
        found = ask(self._cache_says, "match", self._cache.match, list(hashes))
        if len(found) > len(hashes):
            self._fail("match finds a prefix", f"{len(found)} blocks for {len(hashes)} hashes", cache=True)
        blocks = [self._block(index, "match", cache=True) for index in found]
        for place, (block, block_hash) in enumerate(zip(blocks, hashes, strict=False)):
            if block.block_hash != block_hash:
                self._fail(
                    "match returns the block of each hash",
                    f"block {found[place]} at place {place} holds other tokens",
                    cache=True,
                )
        return blocks

    def take(self, count: int, request_id: str | None = None) -> list[Block]:
        """Hand out `count` blocks of the allocator; while it has too few, the cache evicts."""
        if count > len(self.free):
            raise OutOfBlocks(f"{count} blocks asked for, {len(self.free)} free")
        for _ in range(count - (len(self.free) - self.num_evictable)):
            self._evict()
            self.num_evictions += 1
        ids = ask(self._allocator_says, f"take({count})", self._allocator.take, count)
        if len(ids) != count or len(set(ids)) != count:
            self._fail("take(n) returns n different blocks", f"take({count}) returned {list(ids)}")
        taken = [self._block(index, "take") for index in ids]
        for block in taken:
            if block.ref_count or block.block_hash is not None:
                owner = "requests own it" if block.ref_count else "the prefix cache holds it"
                self._fail("a block is free when it is taken", f"take returned {block.block_id - 1}: {owner}")
            block.ref_count = 1
            if self.on_event is not None:
                self.on_event("alloc", block, request_id)
        self.num_owned += count
        return taken

    def touch(self, block: Block, request_id: str | None = None) -> None:
        """Add an owner. A block without one gets the cache's reference."""
        if block.ref_count == 0:
            ask(self._cache_says, "touch", self._cache.touch, block.block_id - 1)
            self.num_evictable -= 1
            self.num_owned += 1
        else:
            ask(self._allocator_says, "share", self._allocator.share, block.block_id - 1)
            self.num_saved += 1
        block.ref_count += 1
        if self.on_event is not None:
            self.on_event("ref", block, request_id)

    def release(self, blocks: Sequence[Block], request_id: str | None = None) -> None:
        """Drop one owner of each block, the tail first. The cache keeps the last reference to what it holds."""
        returned = []
        for block in reversed(blocks):
            block.ref_count -= 1
            if block.ref_count:
                self.num_saved -= 1
            else:
                self.num_owned -= 1
            if block.ref_count == 0 and block.block_hash is not None:
                ask(self._cache_says, "release", self._cache.release, block.block_id - 1)
                self.num_evictable += 1
            else:
                returned.append(block.block_id - 1)
            if self.on_event is not None:
                self.on_event("unref" if block.ref_count else "free", block, request_id)
        if returned:
            ask(self._allocator_says, "release", self._allocator.release, returned)

    def register(self, block: Block, block_hash: bytes, request_id: str | None = None) -> bool:
        """Offer a written block to the cache. False if another block already stands for its hash."""
        is_new = block_hash not in self.cached
        answer = ask(self._cache_says, "insert", self._cache.insert, block_hash, block.block_id - 1)
        if bool(answer) is not is_new:
            known = "an unknown hash" if is_new else "a known hash"
            self._fail("insert keeps the first block of a hash", f"{answer!r} for {known}", cache=True)
        return super().register(block, block_hash, request_id)

    def reset(self) -> bool:
        """Forget all cached content. Refused (False) while any block is used."""
        if self.num_used:
            return False
        while self.num_evictable:
            self._evict()
        return True

    def _evict(self) -> None:
        """Let the cache choose a block to forget, and return its reference to the allocator."""
        index = ask(self._cache_says, "evict", self._cache.evict)
        if index is None:
            self._fail("evict finds a block without owners", f"None with {self.num_evictable}", cache=True)
        block = self._block(index, "evict", cache=True)
        if block.ref_count or block.block_hash is None:
            held = f"{block.ref_count} requests own it" if block.ref_count else "it holds no prefix"
            self._fail("evict leaves blocks with owners", f"evict returned block {index}: {held}", cache=True)
        if self.before_eviction is not None:
            self.before_eviction(block)
        self._forget(block)
        self.num_evictable -= 1
        ask(self._allocator_says, "release", self._allocator.release, [index])

    def _block(self, index: Any, method: str, cache: bool = False) -> Block:
        """Return the engine's block of a learner's id."""
        if type(index) is not int or not 0 <= index < self.num_usable:
            self._fail("a block id is 0 to n - 1", f"{method} returned {index!r} of {self.num_usable}", cache)
        return self.blocks[index + 1]

    def _fail(self, rule: str, detail: str, cache: bool = False) -> None:
        raise PieceError(self._cache_says if cache else self._allocator_says, rule, detail)

    def check_integrity(self) -> list[str]:
        """Return where the pieces disagree with the engine's record of owners and hashes."""
        problems = []
        for block in self.blocks[1:]:
            is_evictable = block.ref_count == 0 and block.block_hash is not None
            expected = block.ref_count + is_evictable
            if (count := self._allocator.ref_count(block.block_id - 1)) != expected:
                problems.append(
                    f"allocator: block {block.block_id - 1} has {count} references, not {expected}"
                )
            if block.block_hash is not None and self.cached.get(block.block_hash) is not block:
                problems.append(f"{block} carries a hash that the index gives to another block")
        evictable = sum(block.ref_count == 0 and block.block_hash is not None for block in self.blocks)
        owned = sum(block.ref_count > 0 for block in self.blocks)
        if (owned, evictable) != (self.num_owned, self.num_evictable):
            counted = f"{self.num_owned} owned and {self.num_evictable} evictable blocks counted"
            problems.append(f"{counted}, there are {owned} and {evictable}")
        if (free := self._allocator.num_free) != self.num_usable - owned - evictable:
            problems.append(f"allocator: num_free is {free}, not {self.num_usable - owned - evictable}")
        if len(self._cache) != len(self.cached):
            problems.append(f"prefix cache: it holds {len(self._cache)} blocks, not {len(self.cached)}")
        saved = sum(block.ref_count - 1 for block in self.blocks if block.ref_count > 1)
        if saved != self.num_saved:
            problems.append(f"{self.num_saved} blocks counted as saved by sharing, {saved} are")
        return problems


class MineHasher(BlockHasher):
    """Block hashes by the learner's function. Our own chain runs beside it: equal hashes must mean equal prefixes."""

    def __init__(self, block_size: int, pieces: Pieces, model_fingerprint: str, kv_cache_dtype: str) -> None:
        super().__init__(block_size, model_fingerprint=model_fingerprint, kv_cache_dtype=kv_cache_dtype)
        self._says = pieces["block_hashes"].says
        self._block_hashes = pieces["block_hashes"].item
        self._pack = struct.Struct(f"<{block_size}q").pack
        self._content: dict[bytes, bytes] = {}
        """Learner's hash -> our hash of the same prefix."""

    def extend(self, request: Request) -> None:
        known, num_full = len(request.block_hashes), len(request.token_ids) // self.block_size
        if known >= num_full:
            return
        salt = self.root(request.lora_key, request.cache_salt)
        for image in request.mm_features:
            salt = self._digest(salt + encode_fields(image=image.mm_hash, at=str(image.offset)))
        tokens = request.token_ids[: num_full * self.block_size]
        hashes = ask(self._says, f"{num_full} blocks", self._block_hashes, tokens, self.block_size, salt)
        if len(hashes) != num_full or not all(isinstance(each, bytes) for each in hashes):
            raise PieceError(self._says, "one hash (bytes) per full block", f"{len(hashes)} for {num_full}")
        if hashes[:known] != request.block_hashes:
            raise PieceError(
                self._says,
                "hashes of full blocks never change",
                f"the first {known} did when tokens followed",
            )
        self._compare(hashes, tokens, salt)
        request.block_hashes += hashes[known:]

    def _compare(self, hashes: list[bytes], tokens: list[int], parent: bytes) -> None:
        if len(self._content) > MAX_KNOWN_HASHES:
            self._content.clear()
        size = self.block_size
        for index, block_hash in enumerate(hashes):
            content = self._pack(*tokens[index * size : (index + 1) * size])
            parent = hashlib.sha256(parent + content).digest()
            if self._content.setdefault(block_hash, parent) != parent:
                raise PieceError(
                    self._says,
                    "equal hashes mean equal prefixes",
                    f"two prefixes of {index + 1} blocks share {block_hash.hex()[:8]}",
                )


class MineKV(KVManager):
    """The KV manager with the learner's pool and hashes, where they exist."""

    def __init__(
        self,
        config: CacheConfig,
        *,
        model_fingerprint: str = "",
        on_event: OnBlockEvent | None = None,
        pieces: Pieces | None = None,
    ) -> None:
        super().__init__(config, model_fingerprint=model_fingerprint, on_event=on_event)
        pieces = current() if pieces is None else pieces
        if pieces.has("allocator"):
            before_eviction = self.pool.before_eviction
            self.pool = MinePool(config.num_blocks, on_event, pieces)
            self.pool.before_eviction = before_eviction
        if pieces.has("block_hashes"):
            self.hasher = MineHasher(config.block_size, pieces, model_fingerprint, config.kv_cache_dtype)

    def match(self, request: Request) -> PrefixHit:
        """Find the longest prefix with the learner's cache; with a window or host blocks, in its record."""
        special = self.host is not None or self.sliding_window is not None or self.drop_last_hit_block
        if special or not isinstance(self.pool, MinePool) or not self.reads_cache(request):
            return super().match(request)
        return PrefixHit(self.pool.match(request.block_hashes[: self._max_hit(request)]))

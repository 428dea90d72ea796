"""Blocks of KV memory: who owns them, what they hold, and which one is reused next.

A block's life:

                take                      register (after the step that wrote it)
      [free] ----------> [used, anonymous] ----------------> [used, cached]
        ^                      |                                |      ^
        |   release: front     |                  release: back |      | touch: a prefix hit
        +----------------------+                                v      |
        ^                                                   [free, cached]
        +---------------------------------------------------------+
                     take: its content is evicted

Source: vLLM v1/core/block_pool.py and v1/core/kv_cache_utils.py (FreeKVCacheBlockQueue).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

from engine.core.errors import IntegrityError, OutOfBlocks

BlockEvent = Literal["alloc", "ref", "unref", "free", "seal", "evict"]


class Block:
    """A fixed run of `block_size` token slots in the KV cache."""

    __slots__ = ("block_hash", "block_id", "next", "prev", "ref_count")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        """Number of running requests that have it in their block table."""
        self.block_hash: bytes | None = None
        """Set once its tokens are final and their KV is written; from then on it is read-only."""
        self.prev: Block | None = None
        self.next: Block | None = None

    def __repr__(self) -> str:
        name = self.block_hash.hex()[:8] if self.block_hash else "-"
        return f"Block({self.block_id}, ref_count={self.ref_count}, hash={name})"


OnBlockEvent = Callable[[BlockEvent, Block, str | None], None]


class FanOut:
    """Calls several listeners in the order in which they were added; a pool calls only one."""

    def __init__(self, listeners: tuple[OnBlockEvent, ...]) -> None:
        self.listeners = listeners

    def __call__(self, kind: BlockEvent, block: Block, request_id: str | None) -> None:
        for listener in self.listeners:
            listener(kind, block, request_id)


class FreeQueue:
    """Free blocks in eviction order: the front is reused next, the back last.

    A doubly linked list threaded through the blocks themselves, so that a prefix hit can pull its block out of the
    middle in O(1) and nothing is allocated per operation.

        head <-> [never cached] ... [cached, least recently used] ... [cached, most recent] <-> tail

    `head` and `tail` are sentinels: no operation has a special case for the ends.
    """

    def __init__(self, blocks: Iterable[Block] = ()) -> None:
        self._head = Block(-1)
        self._tail = Block(-2)
        self._head.next = self._tail
        self._tail.prev = self._head
        self._length = 0
        for block in blocks:
            self.push_back(block)

    def pop_front(self) -> Block:
        block = self._head.next
        if block is None or block is self._tail:
            raise OutOfBlocks("the free queue is empty: compare with len() before taking blocks")
        self.remove(block)
        return block

    def push_front(self, block: Block) -> None:
        """Add a block without reusable content: it is taken first."""
        self._link(self._head, block, self._head.next)

    def push_back(self, block: Block) -> None:
        """Add a block whose content may be hit again: it is taken last."""
        self._link(self._tail.prev, block, self._tail)

    def remove(self, block: Block) -> None:
        """Remove a block from any place in the queue: a hit revives it."""
        before, after = block.prev, block.next
        if before is None or after is None:
            raise IntegrityError(f"{block} is not in the free queue")
        before.next, after.prev = after, before
        block.prev = block.next = None
        self._length -= 1

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Block]:
        """From the front to the back; the queue must not change meanwhile."""
        block = self._head.next
        while block is not None and block is not self._tail:
            yield block
            block = block.next

    def __contains__(self, block: Block) -> bool:
        return block.next is not None

    def _link(self, before: Block | None, block: Block, after: Block | None) -> None:
        if before is None or after is None or block.next is not None:
            raise IntegrityError(f"{block} is already in the free queue")
        block.prev, block.next = before, after
        before.next = after.prev = block
        self._length += 1

    def check_integrity(self) -> list[str]:
        """Return what is inconsistent in the links: backward links must mirror forward links."""
        problems: list[str] = []
        previous, count = self._head, 0
        for block in self:
            if block.prev is not previous:
                problems.append(f"{block} does not point back to the block before it")
            previous, count = block, count + 1
        if self._tail.prev is not previous:
            problems.append("the tail does not point back to the last block")
        if count != self._length:
            problems.append(f"the free queue says {self._length} blocks but links {count}")
        return problems


class BlockPool:
    """All blocks, the free queue and the prefix index.

    Block 0 is the null block: never handed out, so that padding rows may point at it.

    `on_event(kind, block, request_id)` is called for every change, in order:

        alloc  taken, ref_count 1      ref    shared by a hit       unref  one owner less, some left
        free   the last owner left     seal   its hash registered   evict  its hash is dropped next
    """

    def __init__(self, num_blocks: int, on_event: OnBlockEvent | None = None) -> None:
        self.blocks = [Block(block_id) for block_id in range(num_blocks)]
        self.null_block = self.blocks[0]
        self.free = FreeQueue(self.blocks[1:])
        self.cached: dict[bytes, Block] = {}
        """The prefix index: one block per hash. A second block with the same content stays anonymous."""
        self.on_event = on_event
        self.before_eviction: Callable[[Block], object] | None = None
        """Called with a cached block right before it is reused, so that its content can be copied."""
        self.num_evictable = 0
        """Free blocks whose content is still cached."""
        self.num_evictions = 0
        """Cached contents lost to reuse since the pool was made."""
        self.num_saved = 0
        """Blocks saved by sharing: the owners of each block beyond its first."""

    @property
    def num_usable(self) -> int:
        """Blocks that can be handed out: all but the null block."""
        return len(self.blocks) - 1

    @property
    def num_used(self) -> int:
        return self.num_usable - len(self.free)

    def take(self, count: int, request_id: str | None = None) -> list[Block]:
        """Hand out `count` blocks from the front of the free queue and evict what they held, or raise OutOfBlocks."""
        if count > len(self.free):
            raise OutOfBlocks(f"{count} blocks asked for, {len(self.free)} free")
        taken: list[Block] = []
        for _ in range(count):
            block = self.free.pop_front()
            if block.block_hash is not None:
                self.num_evictable -= 1
                self.num_evictions += 1
                if self.before_eviction is not None:
                    self.before_eviction(block)
                self._forget(block)
            block.ref_count = 1
            taken.append(block)
            if self.on_event is not None:
                self.on_event("alloc", block, request_id)
        return taken

    def touch(self, block: Block, request_id: str | None = None) -> None:
        """Add an owner to a cached block; a free one leaves the queue."""
        if block.ref_count == 0:
            self.free.remove(block)
            self.num_evictable -= 1
        else:
            self.num_saved += 1
        block.ref_count += 1
        if self.on_event is not None:
            self.on_event("ref", block, request_id)

    def release(self, blocks: Sequence[Block], request_id: str | None = None) -> None:
        """Drop one owner of each block of a chain, given in order.

        The tail is freed first, so that it is evicted first: a chain is only reachable from its start.
        """
        for block in reversed(blocks):
            block.ref_count -= 1
            if block.ref_count == 0:
                self._enqueue(block)
            else:
                self.num_saved -= 1
            if self.on_event is not None:
                self.on_event("free" if block.ref_count == 0 else "unref", block, request_id)

    def register(self, block: Block, block_hash: bytes, request_id: str | None = None) -> bool:
        """Make a written block findable by its hash. False if another block already stands for it."""
        if block_hash in self.cached:
            return False
        self.cached[block_hash] = block
        block.block_hash = block_hash
        if self.on_event is not None:
            self.on_event("seal", block, request_id)
        return True

    def reset(self) -> bool:
        """Forget all cached content. Refused (False) while any block is used."""
        if self.num_used:
            return False
        for block in list(self.cached.values()):
            self._forget(block)
        self.num_evictable = 0
        return True

    def _enqueue(self, block: Block) -> None:
        if block.block_hash is None:
            self.free.push_front(block)
        else:
            self.free.push_back(block)
            self.num_evictable += 1

    def _forget(self, block: Block) -> None:
        if block.block_hash is None:
            return
        if self.on_event is not None:
            self.on_event("evict", block, None)
        del self.cached[block.block_hash]
        block.block_hash = None

    def check_integrity(self) -> list[str]:
        """Return what is inconsistent.

        free + used == usable; exactly the blocks without owners are queued; index and blocks agree about hashes.
        """
        problems = self.free.check_integrity()
        used = sum(block.ref_count > 0 for block in self.blocks[1:])
        if len(self.free) + used != self.num_usable:
            problems.append(f"{len(self.free)} free + {used} used != {self.num_usable} blocks")
        for block in self.blocks[1:]:
            if block.ref_count < 0:
                problems.append(f"{block} was released more often than taken")
            if (block in self.free) != (block.ref_count == 0):
                problems.append(f"{block} is {'queued' if block in self.free else 'not queued'}")
            if block.block_hash is not None and self.cached.get(block.block_hash) is not block:
                problems.append(f"{block} carries a hash that the index gives to another block")
        saved = sum(block.ref_count - 1 for block in self.blocks if block.ref_count > 1)
        if saved != self.num_saved:
            problems.append(f"{self.num_saved} blocks counted as saved by sharing, {saved} are")
        for block_hash, block in self.cached.items():
            if block.block_hash != block_hash:
                problems.append(f"the index gives {block_hash.hex()[:8]} to {block}")
        evictable = sum(block.block_hash is not None for block in self.free)
        if evictable != self.num_evictable:
            problems.append(f"{self.num_evictable} evictable blocks counted, {evictable} queued")
        if self.null_block.ref_count or self.null_block.block_hash or self.null_block in self.free:
            problems.append(f"the null block is in use: {self.null_block}")
        return problems


def add_listener(pool: BlockPool, listener: OnBlockEvent) -> None:
    """Call `listener` for all further events of the pool."""
    _set_listeners(pool, (*_listeners(pool), listener))


def remove_listener(pool: BlockPool, listener: OnBlockEvent) -> None:
    """Stop calling `listener`. Does nothing if it was not added."""
    _set_listeners(pool, tuple(other for other in _listeners(pool) if other != listener))


def _listeners(pool: BlockPool) -> tuple[OnBlockEvent, ...]:
    if pool.on_event is None:
        return ()
    return pool.on_event.listeners if isinstance(pool.on_event, FanOut) else (pool.on_event,)


def _set_listeners(pool: BlockPool, listeners: tuple[OnBlockEvent, ...]) -> None:
    pool.on_event = FanOut(listeners) if len(listeners) > 1 else next(iter(listeners), None)

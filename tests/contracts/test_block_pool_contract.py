"""Contract of any block pool, whatever its eviction order.

A pool is made as `Class(num_blocks, on_event)`, has take, touch, release, register and reset, and
shows `blocks`, `free` (with a length), `cached`, `num_usable` and `num_used`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from engine.core.blocks import Block, BlockPool
from engine.core.errors import OutOfBlocks
from engine.core.scheduler import Scheduler
from tests.core.shadow_kv import explain, failure
from tests.core.workloads import Workload

NUM_BLOCKS = 12


class Tenants:
    """Owners that use a pool as the KV manager does, and record what each owns."""

    def __init__(self, pool: Any, seed: int) -> None:
        self.pool = pool
        self.rng = random.Random(seed)
        self.tables: list[list[Block]] = []
        self.num_names = 0

    def act(self) -> None:
        self.rng.choice([self.take, self.take, self.hit, self.name, self.leave])()
        self.check()

    def take(self) -> None:
        count = self.rng.randint(1, 4)
        if count > len(self.pool.free):
            with pytest.raises(OutOfBlocks):
                self.pool.take(count)
            return
        blocks = self.pool.take(count)
        owned = {block.block_id for table in self.tables for block in table}
        ids = [block.block_id for block in blocks]
        assert len(set(ids)) == count, "a block was handed out twice"
        assert not owned & set(ids), "a block with an owner was handed out"
        assert 0 not in ids, "the null block was handed out"
        assert all(block.block_hash is None for block in blocks), "a block still has its old content"
        self.tables.append(blocks)

    def hit(self) -> None:
        if self.pool.cached:
            block = self.pool.cached[self.rng.choice(sorted(self.pool.cached))]
            self.pool.touch(block)
            self.tables.append([block])

    def name(self) -> None:
        anonymous = [b for table in self.tables for b in table if b.block_hash is None]
        if anonymous:
            self.num_names += 1
            assert self.pool.register(anonymous[0], self.num_names.to_bytes(4, "big"))

    def leave(self) -> None:
        if self.tables:
            self.pool.release(self.tables.pop(self.rng.randrange(len(self.tables))))

    def check(self) -> None:
        owners = Counter(block.block_id for table in self.tables for block in table)
        assert all(block.ref_count == owners[block.block_id] for block in self.pool.blocks)
        assert self.pool.num_used == len(owners)
        assert len(self.pool.free) == NUM_BLOCKS - len(owners)
        for name, block in self.pool.cached.items():
            assert block.block_hash == name
        named = {block.block_id for block in self.pool.blocks if block.block_hash is not None}
        assert named == {block.block_id for block in self.pool.cached.values()}


def judge(pool_class: Any) -> None:
    for seed in range(60):
        tenants = Tenants(pool_class(NUM_BLOCKS + 1), seed)
        for _ in range(60):
            tenants.act()


def test_block_pool_counts_owners_and_never_hands_out_what_is_owned(block_pool_class: Any) -> None:
    judge(block_pool_class)


def test_block_pool_keeps_a_second_copy_anonymous(block_pool_class: Any) -> None:
    pool = block_pool_class(NUM_BLOCKS + 1)
    first, second = pool.take(2)
    assert pool.register(first, b"h") is True
    assert pool.register(second, b"h") is False
    assert second.block_hash is None and pool.cached[b"h"] is first


def test_block_pool_reset_forgets_everything_and_refuses_while_blocks_are_used(block_pool_class: Any) -> None:
    pool = block_pool_class(NUM_BLOCKS + 1)
    (block,) = pool.take(1)
    pool.register(block, b"h")
    assert pool.reset() is False and pool.cached
    pool.release([block])
    assert pool.reset() is True and not pool.cached and block.block_hash is None


def test_block_pool_keeps_content_until_it_needs_the_block(block_pool_class: Any) -> None:
    pool = block_pool_class(NUM_BLOCKS + 1)
    blocks = pool.take(4)
    for index, block in enumerate(blocks):
        pool.register(block, bytes([index]))
    pool.release(blocks)
    pool.take(NUM_BLOCKS - 4)
    assert len(pool.cached) == 4
    pool.take(1)
    assert len(pool.cached) == 3


def with_pool(pool_class: Any) -> Callable[..., Scheduler]:
    def factory(scheduler_config: Any, cache_config: Any, **options: Any) -> Scheduler:
        scheduler = Scheduler(scheduler_config, cache_config)
        scheduler.kv.pool = pool_class(cache_config.num_blocks, options.get("on_event"))
        return scheduler

    return factory


def test_block_pool_serves_a_scheduler(block_pool_class: Any) -> None:
    factory = with_pool(block_pool_class)
    for seed in range(100):
        workload = Workload.random(seed)
        problem = failure(workload, factory)
        assert problem is None, explain(workload, factory)


# -- the judge accepts another policy and refuses broken ones


class MostRecentFirst(BlockPool):
    """Evicts the content that was used last: bad for hits, and correct."""

    def _enqueue(self, block: Block) -> None:
        self.free.push_front(block)
        self.num_evictable += block.block_hash is not None


class Forgetting(BlockPool):
    def touch(self, block: Block, request_id: str | None = None) -> None:
        if block.ref_count == 0:
            super().touch(block, request_id)


class Stale(BlockPool):
    def _forget(self, block: Block) -> None:
        block.block_hash = None


def test_the_judge_accepts_another_eviction_order() -> None:
    judge(MostRecentFirst)
    factory = with_pool(MostRecentFirst)
    assert not any(failure(Workload.random(seed), factory) for seed in range(60))


@pytest.mark.parametrize("broken", [Forgetting, Stale])
def test_the_judge_refuses_a_broken_pool(broken: type[BlockPool]) -> None:
    with pytest.raises((AssertionError, KeyError)):
        judge(broken)

"""The free queue and the block pool against models that are too simple to be wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.core.blocks import Block, BlockPool, FreeQueue
from engine.core.errors import IntegrityError, OutOfBlocks
from tests.counting import instructions, peak_bytes

MOST_INSTRUCTIONS = 250
"""Bound of an operation; 81 with Python 3.11."""


class FreeQueueMachine(RuleBasedStateMachine):
    """FreeQueue against a list."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = [Block(block_id) for block_id in range(8)]
        self.queue = FreeQueue(self.blocks[:4])
        self.model = self.blocks[:4]

    def outside(self) -> list[Block]:
        return [block for block in self.blocks if block not in self.model]

    @precondition(lambda self: self.outside())
    @rule(data=st.data(), front=st.booleans())
    def push(self, data: st.DataObject, front: bool) -> None:
        block = data.draw(st.sampled_from(self.outside()))
        if front:
            self.queue.push_front(block)
            self.model.insert(0, block)
        else:
            self.queue.push_back(block)
            self.model.append(block)

    @precondition(lambda self: self.model)
    @rule()
    def pop(self) -> None:
        assert self.queue.pop_front() is self.model.pop(0)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.model))
        self.queue.remove(block)
        self.model.remove(block)

    @invariant()
    def same_order(self) -> None:
        assert list(self.queue) == self.model
        assert len(self.queue) == len(self.model)
        assert all((block in self.queue) == (block in self.model) for block in self.blocks)
        assert not self.queue.check_integrity()


class BlockPoolMachine(RuleBasedStateMachine):
    """BlockPool against lists and counters: who owns what, which hash means which block, who is next."""

    NUM_BLOCKS = 7
    HASHES = [bytes([i]) for i in range(5)]

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(self.NUM_BLOCKS + 1)
        self.tables: list[list[Block]] = []
        self.order = list(self.pool.blocks[1:])
        self.names: dict[bytes, Block] = {}

    @rule(count=st.integers(1, NUM_BLOCKS + 1))
    def take(self, count: int) -> None:
        if count > len(self.order):
            with pytest.raises(OutOfBlocks):
                self.pool.take(count)
            return
        expected, self.order = self.order[:count], self.order[count:]
        self.names = {name: block for name, block in self.names.items() if block not in expected}
        assert self.pool.take(count) == expected
        self.tables.append(expected)

    @precondition(lambda self: self.names)
    @rule(data=st.data())
    def hit(self, data: st.DataObject) -> None:
        block = self.names[data.draw(st.sampled_from(sorted(self.names)))]
        self.pool.touch(block)
        if block in self.order:
            self.order.remove(block)
        self.tables.append([block])

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), name=st.sampled_from(HASHES))
    def register(self, data: st.DataObject, name: bytes) -> None:
        block = data.draw(st.sampled_from([b for table in self.tables for b in table]))
        if block in self.names.values():
            return
        is_new = name not in self.names
        assert self.pool.register(block, name) == is_new
        if is_new:
            self.names[name] = block

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.pool.release(table)
        owned = [b for other in self.tables for b in other]
        for block in reversed(table):
            if block in owned:
                continue
            if block in self.names.values():
                self.order.append(block)
            else:
                self.order.insert(0, block)

    @rule()
    def reset(self) -> None:
        assert self.pool.reset() == (not self.tables)
        if not self.tables:
            self.names = {}

    @invariant()
    def same_state(self) -> None:
        owned = [block for table in self.tables for block in table]
        assert list(self.pool.free) == self.order
        assert [b.ref_count for b in self.pool.blocks] == [owned.count(b) for b in self.pool.blocks]
        assert self.pool.cached == self.names
        assert self.pool.num_used == len(set(owned))
        assert not self.pool.check_integrity()


TestFreeQueue = FreeQueueMachine.TestCase
TestBlockPool = BlockPoolMachine.TestCase
TestFreeQueue.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestBlockPool.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_taking_more_than_there_is_changes_nothing() -> None:
    pool = BlockPool(4)
    with pytest.raises(OutOfBlocks, match="4 blocks asked for, 3 free"):
        pool.take(4)
    assert len(pool.free) == 3


def test_a_block_cannot_be_queued_twice_or_removed_twice() -> None:
    block = Block(1)
    queue = FreeQueue([block])
    with pytest.raises(IntegrityError, match="already"):
        queue.push_back(block)
    queue.remove(block)
    with pytest.raises(IntegrityError, match="not in"):
        queue.remove(block)
    with pytest.raises(OutOfBlocks):
        queue.pop_front()


def test_events_come_in_order_and_with_the_owner() -> None:
    events: list[tuple[str, int, str | None, bytes | None]] = []

    def remember(kind: str, block: Block, owner: str | None) -> None:
        events.append((kind, block.block_id, owner, block.block_hash))

    pool = BlockPool(3, remember)
    (block,) = pool.take(1, "a")
    pool.register(block, b"h", "a")
    pool.touch(block, "b")
    pool.release([block], "a")
    pool.release([block], "b")
    pool.take(2, "c")
    assert events == [
        ("alloc", 1, "a", None),
        ("seal", 1, "a", b"h"),
        ("ref", 1, "b", b"h"),
        ("unref", 1, "a", b"h"),
        ("free", 1, "b", b"h"),
        ("alloc", 2, "c", None),
        ("evict", 1, None, b"h"),
        ("alloc", 1, "c", None),
    ]


def cost_of_operations(
    cost: Callable[[Callable[[], None]], int], num_blocks: int, operations: int = 1000
) -> float:
    """Take one, name it, free it, revive it from the middle, free it again."""
    pool = BlockPool(num_blocks)
    names = [index.to_bytes(4, "little") for index in range(operations)]

    def operate() -> None:
        for name in names:
            (block,) = pool.take(1)
            pool.register(block, name)
            pool.release([block])
            pool.touch(block)
            pool.release([block])

    return cost(operate) / (5 * operations)


def test_an_operation_does_the_same_little_work_whatever_the_number_of_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Block, "__eq__", lambda one, other: one is other)  # a search of a list counts
    small, large = (cost_of_operations(instructions, number) for number in (2000, 200_000))
    assert small == large < MOST_INSTRUCTIONS
    small, large = (cost_of_operations(peak_bytes, number) for number in (2000, 200_000))
    assert large < 1.1 * small

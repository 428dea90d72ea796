"""V0's books against the obvious model: every sequence is a list of token slots, copied when shared and written."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from engine.core.errors import OutOfBlocks
from engine.frontend.block_space_manager import AllocStatus, BlockSpaceManager

BLOCK_SIZE = 4


def test_a_fork_shares_everything_and_the_first_writer_copies_the_half_full_block() -> None:
    manager = BlockSpaceManager(8, 0, BLOCK_SIZE)
    manager.allocate("parent", 6)
    manager.fork("parent", "child")
    assert manager.num_used_blocks == 2
    first, last = manager.block_table("parent")
    copy = manager.append_slot("child")
    assert copy is not None and copy[0] == last
    assert manager.block_table("child") == [first, copy[1]]
    assert manager.append_slot("parent") is None, "the block has one owner again"
    assert manager.num_copies == 1


def test_a_full_last_block_is_never_copied() -> None:
    manager = BlockSpaceManager(8, 0, BLOCK_SIZE)
    manager.allocate("parent", 8)
    for child in ("a", "b"):
        manager.fork("parent", child)
        assert manager.append_slot(child) is None
    assert manager.num_copies == 0
    assert manager.num_used_blocks == 4


def test_prompts_that_never_fit_are_told_apart_from_those_that_must_wait() -> None:
    manager = BlockSpaceManager(4, 0, BLOCK_SIZE)
    assert manager.can_allocate(17) is AllocStatus.NEVER
    assert manager.can_allocate(16) is AllocStatus.OK
    manager.allocate("a", 5)
    assert manager.can_allocate(9) is AllocStatus.LATER
    with pytest.raises(OutOfBlocks):
        manager.allocate("b", 9)
    assert not manager.check_integrity()


def test_wrong_names_are_refused_and_change_nothing() -> None:
    manager = BlockSpaceManager(4, 4, BLOCK_SIZE)
    manager.allocate("a", 5)
    with pytest.raises(ValueError, match="'a' already"):
        manager.allocate("a", 1)
    with pytest.raises(KeyError):
        manager.append_slot("b")
    with pytest.raises(ValueError, match="not swapped out"):
        manager.swap_in("a")
    manager.swap_out("a")
    with pytest.raises(ValueError, match="swap it in first"):
        manager.append_slot("a")
    manager.free("a")
    assert manager.num_used_blocks == manager.host.num_used == 0


class Machine(RuleBasedStateMachine):
    """Content is simulated: a slot holds the history of the sequence that wrote it, and must stay readable."""

    names = Bundle("names")

    def __init__(self) -> None:
        super().__init__()
        self.manager = BlockSpaceManager(12, 8, BLOCK_SIZE)
        self.slots: dict[tuple[str, int, int], tuple[int, ...]] = {}
        self.tokens: dict[int, list[int]] = {}
        self.swapped: set[int] = set()
        self.next_token = 0
        self.next_name = 0

    def pool(self, name: int) -> str:
        return "host" if name in self.swapped else "device"

    def write(self, name: int, position: int) -> None:
        block = self.manager.block_table(name)[position // BLOCK_SIZE]
        self.slots[self.pool(name), block, position % BLOCK_SIZE] = tuple(self.tokens[name][: position + 1])

    def copy(self, pairs: list[tuple[int, int]], source: str, target: str) -> None:
        content = dict(self.slots)
        for a, b in pairs:
            for offset in range(BLOCK_SIZE):
                if (source, a, offset) in content:
                    self.slots[target, b, offset] = content[source, a, offset]

    @rule(target=names, num_tokens=st.integers(1, 9))
    def allocate(self, num_tokens: int) -> int:
        if self.manager.can_allocate(num_tokens) is not AllocStatus.OK:
            return multiple()
        name, self.next_name = self.next_name, self.next_name + 1
        self.manager.allocate(name, num_tokens)
        self.tokens[name] = list(range(self.next_token, self.next_token + num_tokens))
        self.next_token += num_tokens
        for position in range(num_tokens):
            self.write(name, position)
        return name

    @rule(name=names)
    def append(self, name: int) -> None:
        if name in self.swapped:
            return
        try:
            copy = self.manager.append_slot(name)
        except OutOfBlocks:
            return
        if copy:
            self.copy([copy], "device", "device")
        self.tokens[name].append(self.next_token)
        self.next_token += 1
        self.write(name, len(self.tokens[name]) - 1)

    @rule(target=names, name=names)
    def fork(self, name: int) -> int:
        if name in self.swapped:
            return multiple()
        child, self.next_name = self.next_name, self.next_name + 1
        self.manager.fork(name, child)
        self.tokens[child] = list(self.tokens[name])
        return child

    @rule(name=names)
    def swap(self, name: int) -> None:
        if name in self.swapped and self.manager.can_swap_in(name):
            self.copy(self.manager.swap_in(name), "host", "device")
            self.swapped.remove(name)
        elif name not in self.swapped and self.manager.can_swap_out(name):
            self.copy(self.manager.swap_out(name), "device", "host")
            self.swapped.add(name)

    @rule(name=consumes(names))
    def free(self, name: int) -> None:
        self.manager.free(name)
        del self.tokens[name]
        self.swapped.discard(name)

    @invariant()
    def every_sequence_reads_what_it_wrote(self) -> None:
        assert not self.manager.check_integrity()
        for name, tokens in self.tokens.items():
            table = self.manager.block_table(name)
            assert len(table) == -(-len(tokens) // BLOCK_SIZE)
            for position in range(len(tokens)):
                slot = (self.pool(name), table[position // BLOCK_SIZE], position % BLOCK_SIZE)
                assert self.slots[slot] == tuple(tokens[: position + 1])


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)

"""Checks of lesson 07: paged KV memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from lessons.course.checking import Failed, Learner, check, smallest
from prep_common.sandbox import expose

Op = tuple[str, Any]
"""("take", 3), ("share", 5), ("release", [5, 2]): what a random test asks of a pool."""
MAX_REPLAYS = 150


class Model:
    """An allocator that is too simple to be wrong: a list of free ids, a list of owners with repetitions."""

    def __init__(self, num_blocks: int) -> None:
        self.free = list(range(num_blocks))
        self.owned: list[int] = []

    @property
    def num_free(self) -> int:
        return len(self.free)

    def ref_count(self, block: int) -> int:
        return self.owned.count(block)

    def take(self, count: int) -> list[int]:
        if count > len(self.free):
            raise MemoryError
        taken, self.free = self.free[:count], self.free[count:]
        self.owned += taken
        return taken

    def share(self, block: int) -> None:
        if block not in self.owned:
            raise ValueError
        self.owned.append(block)

    def release(self, blocks: Sequence[int]) -> None:
        left = list(self.owned)
        for block in blocks:
            left.remove(block)  # ValueError if it is not there
        for block in blocks:
            self.owned.remove(block)
            if block not in self.owned:
                self.free.append(block)


def outcome(run: Callable[..., Any], *args: Any) -> Any:
    """Return what a call returns, or the name of the error it raises."""
    try:
        return run(*args)
    except MemoryError:
        return "MemoryError"
    except ValueError:
        return "ValueError"


def as_code(ops: Sequence[Op]) -> str:
    return "; ".join(f"{name}({argument})" for name, argument in ops)


def new_pool(learner: Learner, num_blocks: int) -> Any:
    pool = learner.new("BlockAllocator", num_blocks)
    if (free := pool.num_free) != num_blocks:
        raise Failed(
            f"num_free of a new pool is {free!r}; expected {num_blocks}",
            example=f"BlockAllocator({num_blocks})",
        )
    return pool


def difference(pool: Any, model: Model, op: Op, ask: Sequence[str]) -> str | None:
    """Apply one operation to both; return in words how they differ. ask: what to compare besides the answer."""
    name, argument = op
    wanted = outcome(getattr(model, name), argument)
    found = outcome(pool.call, name, argument)
    if found != wanted:
        raised = "raised" if isinstance(wanted, str) else "returned"
        return f"{name}({argument}) gave {found!r}; it should have {raised} {wanted!r}"
    if "num_free" in ask and (free := pool.num_free) != model.num_free:
        return f"after {name}({argument}) num_free is {free!r}; {model.num_free} blocks have no owner"
    blocks = wanted if name == "take" else argument
    for block in blocks if isinstance(blocks, list) and "ref_count" in ask else []:
        if (count := pool.ref_count(block)) != model.ref_count(block):
            return f"after {name}({argument}) block {block} has {count!r} owners; expected {model.ref_count(block)}"
    return None


def first_difference(learner: Learner, ops: Sequence[Op], num_blocks: int) -> tuple[int, str] | None:
    """Replay operations on a new pool; return the index of the first that goes wrong, and how."""
    pool, model = learner.new("BlockAllocator", num_blocks), Model(num_blocks)
    everything = ("num_free", "ref_count")
    for index, op in enumerate(ops):
        # Each question crosses to another process, so long replays ask fewer.
        if words := difference(pool, model, op, everything if len(ops) <= 60 else everything[index % 3 : 1]):
            return index, words
    return None


def shrink(ops: list[Op], still_fails: Callable[[list[Op]], bool]) -> list[Op]:
    """Return fewer and smaller operations that still fail."""
    replays = 0

    def attempt(candidate: list[Op]) -> bool:
        nonlocal ops, replays
        replays += 1
        if replays <= MAX_REPLAYS and still_fails(candidate):
            ops = candidate
            return True
        return False

    size = len(ops) // 2
    while size:  # leave out runs of operations, long ones first
        at = 0
        while at < len(ops):
            if not attempt(ops[:at] + ops[at + size :]):
                at += size
        size //= 2
    for at, (name, argument) in enumerate(ops):
        if name == "take":
            while ops[at][1] > 1 and attempt([*ops[:at], (name, ops[at][1] - 1), *ops[at + 1 :]]):
                pass
        elif name == "release":
            for block in list(argument):
                shorter = list(ops[at][1])
                shorter.remove(block)
                attempt([*ops[:at], (name, shorter), *ops[at + 1 :]])
    return ops


def random_ops(rng: Random, count: int, num_blocks: int) -> list[Op]:
    """Draw operations: mostly sensible ones, some that must be refused."""
    ops: list[Op] = []
    model = Model(num_blocks)
    for _ in range(count):
        kind = rng.random()
        op: Op
        if kind < 0.4 or not model.owned:
            op = "take", rng.randrange(min(5, num_blocks) + 1)
        elif kind < 0.5:
            op = "share", rng.choice(model.owned) if rng.random() < 0.9 else rng.randrange(num_blocks)
        else:
            most = min(len(model.owned), 1 + rng.randrange(6))
            blocks = rng.sample(model.owned, most)
            if rng.random() < 0.1:
                blocks.insert(rng.randrange(most + 1), rng.randrange(num_blocks))
            op = "release", blocks
        outcome(getattr(model, op[0]), op[1])
        ops.append(op)
    return ops


@check("07.1")
def blocks_are_distinct(learner: Learner) -> None:
    """take returns different blocks, each with one owner, and none twice."""
    pool = new_pool(learner, 8)
    seen = [*pool.take(3), *pool.take(0), *pool.take(5)]
    if sorted(seen) != list(range(8)):
        raise Failed(
            f"the pool handed out {seen}; expected each of 0 to 7 once", example="take(3); take(0); take(5)"
        )
    counts = [pool.ref_count(block) for block in range(8)]
    if counts != [1] * 8 or pool.num_free:
        raise Failed(f"owners are {counts}, num_free is {pool.num_free}", example="take(3); take(0); take(5)")


@check("07.1")
def too_few_is_all_or_nothing(learner: Learner) -> None:
    """take raises MemoryError if too few blocks are free, and takes none of them."""
    pool = new_pool(learner, 4)
    pool.take(2)
    if (found := outcome(pool.take, 3)) != "MemoryError":
        raise Failed(
            f"take(3) of 2 free blocks gave {found!r}; expected MemoryError", example="take(2); take(3)"
        )
    if pool.num_free != 2 or pool.take(2) != [2, 3]:
        raise Failed("the failed take kept blocks", example="take(2); take(3); take(2)")


@check("07.1")
def the_last_owner_frees(learner: Learner) -> None:
    """A shared block stays until its last owner releases it."""
    pool = new_pool(learner, 2)
    [block] = pool.take(1)
    pool.share(block)
    pool.release([block])
    if pool.num_free != 1 or pool.ref_count(block) != 1:
        raise Failed(
            "the block became free although it has an owner", example="take(1); share(0); release([0])"
        )
    pool.release([block])
    if pool.num_free != 2 or pool.ref_count(block) != 0:
        raise Failed(
            "the block has no owner and is not free", example="take(1); share(0); release([0]); release([0])"
        )


@check("07.1")
def nothing_is_freed_twice(learner: Learner) -> None:
    """Releasing or sharing a block without owners raises ValueError and changes nothing."""
    cases: list[tuple[list[Op], Op]] = [
        ([], ("release", [0])),
        ([], ("share", 0)),
        ([("take", 1), ("release", [0])], ("release", [0])),
        ([("take", 1)], ("release", [0, 0])),
        ([("take", 2)], ("release", [0, 1, 2])),
        ([("take", 1), ("release", [0])], ("share", 0)),
    ]
    for before, op in cases:
        ops = [*before, op, ("take", 1)]
        if wrong := first_difference(learner, ops, 3):
            raise Failed(wrong[1], example=as_code(ops[: wrong[0] + 1]))


@check("07.1")
def first_free_first_reused(learner: Learner) -> None:
    """Free blocks are handed out in the order in which they became free."""
    ops: list[Op] = [
        ("take", 4),
        ("release", [2]),
        ("release", [0, 3]),
        ("take", 3),
        ("release", [0]),
        ("take", 3),
    ]
    if wrong := first_difference(learner, ops, 6):
        raise Failed(wrong[1], example=as_code(ops[: wrong[0] + 1]))


@check("07.1")
def random_operations(learner: Learner) -> None:
    """2,000 random operations agree with an independent model; a failure is shrunk to the fewest operations."""
    rng = Random(7)
    for count, num_blocks in [(10, 2)] * 10 + [(50, 5)] * 6 + [(600, 12), (1000, 40)]:
        ops = random_ops(rng, count, num_blocks)
        wrong = first_difference(learner, ops, num_blocks)
        if wrong is None:
            continue

        def still_fails(ops: list[Op], size: int = num_blocks) -> bool:
            return first_difference(learner, ops, size) is not None

        ops = shrink(ops[: wrong[0] + 1], still_fails)
        index, words = first_difference(learner, ops, num_blocks) or wrong
        raise Failed(words, example=f"BlockAllocator({num_blocks}): {as_code(ops[: index + 1])}")


class Pool(Model):
    """The allocator that the functions of 07.2 get."""


def lent(pool: Pool) -> Any:
    return expose(pool, ("take", "share", "release", "ref_count"), ("num_free",))


def lent_list(table: list[int]) -> Any:
    return expose(table, ("copy", "index", "count"))


def a_family(learner: Learner, num_blocks: int, length: int, children: int) -> tuple[Pool, list[list[int]]]:
    """Return a pool, and the tables of a parent and its forks."""
    pool = Pool(num_blocks)
    tables = [pool.take(length)]
    for _ in range(children):
        try:
            child = learner.call("fork", lent(pool), list(tables[0]))
        except MemoryError:
            raise Failed("fork asks for blocks; it needs none", example=f"fork(pool, {tables[0]})") from None
        if child != tables[0]:
            raise Failed(
                f"fork returned {child!r}; the child starts with {tables[0]}",
                example=f"fork(pool, {tables[0]})",
            )
        tables.append(list(child))
    return pool, tables


@check("07.2")
def a_fork_takes_no_block(learner: Learner) -> None:
    """fork shares: no block is taken, and each has one more owner."""
    for length in (0, 1, 3):
        pool, [table, _, _] = a_family(learner, 4, length, 2)
        counts = [pool.ref_count(block) for block in table]
        if pool.num_free != 4 - length or counts != [3] * length:
            raise Failed(
                f"{4 - length - pool.num_free} blocks were taken, owners are {counts}; expected 3 each",
                example=f"table = pool.take({length}); fork(pool, table); fork(pool, table)",
            )


@check("07.2")
def tables_are_separate(learner: Learner) -> None:
    """The child's table is a list of its own: a write of the child leaves the parent's table as it was."""
    pool, _ = a_family(learner, 4, 2, 0)
    table = [0, 1]
    shared = lent_list(table)
    child = learner.call("fork", lent(pool), shared)
    if child is table or not isinstance(child, list):
        raise Failed("fork returned its parent's table, not a list of its own", example="fork(pool, [0, 1])")


@check("07.2")
def an_only_owner_writes_in_place(learner: Learner) -> None:
    """The only owner of a block writes in place: None, and nothing changes."""
    pool, [table] = a_family(learner, 3, 2, 0)
    found = learner.call("write", lent(pool), lent_list(table), 1)
    if found is not None or table != [0, 1] or pool.num_free != 1:
        raise Failed(
            f"write returned {found!r}, the table is {table}, {pool.num_free} of 3 blocks are free; expected None, "
            "[0, 1] and 1",
            example="table = pool.take(2); write(pool, table, 1)",
        )


@check("07.2")
def a_shared_block_is_copied(learner: Learner) -> None:
    """Writing into a shared block takes a new one, tells what to copy, and leaves all other entries alone."""
    pool, [parent, child] = a_family(learner, 6, 3, 1)
    found = learner.call("write", lent(pool), lent_list(child), 2)
    example = "parent = pool.take(3); child = fork(pool, parent); write(pool, child, 2)"
    if found not in ((2, 3), [2, 3]):
        raise Failed(f"write returned {found!r}; expected (2, 3): copy block 2 to block 3", example=example)
    if (parent, child) != ([0, 1, 2], [0, 1, 3]):
        raise Failed(f"parent {parent}, child {child}; expected [0, 1, 2] and [0, 1, 3]", example=example)
    counts = [pool.ref_count(block) for block in range(4)]
    if counts != [2, 2, 1, 1]:
        raise Failed(f"owners of blocks 0 to 3 are {counts}; expected [2, 2, 1, 1]", example=example)


@check("07.2")
def no_room_changes_nothing(learner: Learner) -> None:
    """Without a free block write raises MemoryError and changes nothing."""
    pool, [_, child] = a_family(learner, 2, 2, 1)
    found = outcome(learner.call, "write", lent(pool), lent_list(child), 1)
    counts = [pool.ref_count(block) for block in range(2)]
    if found != "MemoryError" or counts != [2, 2] or child != [0, 1]:
        raise Failed(
            f"write gave {found!r}, owners are {counts}, the table is {child}; expected MemoryError, [2, 2], [0, 1]",
            example="a pool of 2: parent = pool.take(2); child = fork(pool, parent); write(pool, child, 1)",
        )


@check("07.2")
def texts_stay_apart(learner: Learner) -> None:
    """400 random forks, writes and ends: every table reads back its own text, no block leaks."""

    def run(case: tuple[int, int]) -> None:
        seed, steps = case
        rng, size = Random(seed), 2
        pool = Pool(24)
        memory: dict[int, list[str]] = {block: [""] * size for block in range(24)}
        family: list[tuple[list[int], list[str]]] = []
        for letter in (chr(ord("a") + step % 26) for step in range(steps)):
            kind = rng.random()
            if not family or (kind < 0.08 and len(family) < 5):
                family.append(([], []))
            elif kind < 0.4 and len(family) < 8:
                table, text = rng.choice(family)
                family.append((list(learner.call("fork", lent(pool), list(table))), list(text)))
            elif kind < 0.5:
                table, _ = family.pop(rng.randrange(len(family)))
                pool.release(table)
            else:
                append(learner, pool, memory, *rng.choice(family), letter)
            for table, text in family:
                read = [memory[table[at // size]][at % size] for at in range(len(text))]
                if read != text:
                    raise Failed(f"a table reads {''.join(read)!r}; its text is {''.join(text)!r}")
        for table, _ in family:
            pool.release(table)
        if pool.owned:
            raise Failed(f"blocks {sorted(set(pool.owned))} still have owners after all tables ended")

    smallest([(seed, 4 + 3 * seed) for seed in range(16)], run)


def append(
    learner: Learner, pool: Pool, memory: dict[int, list[str]], table: list[int], text: list[str], letter: str
) -> None:
    """Append a letter to a text whose blocks hold two letters each."""
    place = len(text) % 2
    if place == 0:
        if not pool.num_free:
            return
        table += pool.take(1)
    else:
        try:
            copy = learner.call("write", lent(pool), lent_list(table), len(table) - 1)
        except MemoryError:
            return
        if copy is not None:
            memory[copy[1]] = list(memory[copy[0]])
    memory[table[-1]][place] = letter
    text.append(letter)


def expect_slots(learner: Learner, table: list[int], start: int, count: int, block_size: int) -> None:
    slots = [block * block_size + place for block in table for place in range(block_size)]
    wanted = slots[start : start + count]
    found = learner.call("slot_mapping", table, start, count, block_size)
    if found != wanted:
        raise Failed(
            f"the slots are {found!r}; expected {wanted}",
            example=f"slot_mapping({table}, start={start}, count={count}, block_size={block_size})",
        )


@check("07.3")
def a_prompt_fills_blocks_in_table_order(learner: Learner) -> None:
    """A prompt's tokens go to the blocks in the order of the table, not of their ids."""
    expect_slots(learner, [0], 0, 3, 4)
    expect_slots(learner, [7, 2], 0, 6, 4)


@check("07.3")
def a_decode_step_writes_one_slot(learner: Learner) -> None:
    """One token at position p goes to place p % block_size of its block."""
    for position in (0, 3, 4, 7, 8):
        expect_slots(learner, [5, 0, 9], position, 1, 4)


@check("07.3")
def a_chunk_may_start_inside_a_block(learner: Learner) -> None:
    """A chunk may start and end inside of blocks."""
    expect_slots(learner, [3, 1, 4], 3, 6, 4)
    expect_slots(learner, [3, 1, 4], 5, 2, 4)


@check("07.3")
def nothing_is_no_slot(learner: Learner) -> None:
    """No tokens, no slots; also at the end of a full table."""
    expect_slots(learner, [3, 1], 8, 0, 4)
    expect_slots(learner, [], 0, 0, 16)


@check("07.3")
def slots_lie_in_the_table(learner: Learner) -> None:
    """A position behind the last block raises ValueError: no slot of another request, none from the end."""
    for table, start, count in (([6], 4, 1), ([6, 2], 0, 9), ([], 0, 1)):
        found = outcome(learner.call, "slot_mapping", table, start, count, 4)
        if found != "ValueError":
            raise Failed(
                f"the result is {found!r}; expected ValueError",
                example=f"slot_mapping({table}, {start}, {count}, 4)",
            )


@check("07.3")
def random_tables(learner: Learner) -> None:
    """200 random tables, the smallest first."""
    rng = Random(73)

    def run(blocks: int) -> None:
        size = rng.choice([1, 2, 3, 8, 16])
        start = rng.randrange(blocks * size)
        expect_slots(
            learner,
            rng.sample(range(3 * blocks), blocks),
            start,
            rng.randrange(blocks * size - start + 1),
            size,
        )

    smallest([1 + index // 20 for index in range(200)], run)

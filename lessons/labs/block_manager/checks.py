"""Checks of the lab block-manager: single rules, random families of forks, the engine's scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

from engine.config import CacheConfig, SchedulerConfig
from engine.core.blocks import Block, BlockPool
from engine.core.kv_manager import KVManager
from engine.core.scheduler import Scheduler
from lessons.course.checking import Failed, Learner, check, constant, fewest
from lessons.labs.serving import Ask, LabScheduler, Service, decide_the_same, requests_of
from prep_common.sandbox import GuestError

LAB = "block-manager"
Tables = dict[str, list[int]]
Op = tuple[str, str, int | str]
"""("allocate", request, tokens), ("fork", parent, child), ("write", request, position) or ("free", request, 0)."""


class Texts:
    """A second opinion that stores texts, not counts: it knows what each table must read back."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.size = block_size
        self.free = num_blocks - 1
        self.lengths: dict[str, int] = {}
        self.groups: dict[str, list[set[str]]] = {}
        """Request -> for each block the requests that share it, one set object per block."""

    def apply(self, op: Op) -> object:
        """Return what the operation must give: a count of new blocks, whether a copy is made, or an error's name."""
        name, request, argument = op
        blocks = self.groups.get(request)
        if name == "allocate":
            missing = max(0, -(-int(argument) // self.size) - len(blocks or []))
            if missing > self.free:
                return None
            self.free -= missing
            self.groups.setdefault(request, []).extend({request} for _ in range(missing))
            return missing
        if blocks is None:
            return "KeyError"
        if name == "fork":
            return self._fork(blocks, str(argument))
        if name == "write":
            return self._write(blocks, request, int(argument))
        for sharers in self.groups.pop(request):
            sharers.remove(request)
            self.free += not sharers
        return "done"

    def _fork(self, blocks: list[set[str]], child: str) -> object:
        if child in self.groups:
            return "ValueError"
        for sharers in blocks:
            sharers.add(child)
        self.groups[child] = list(blocks)
        return "done"

    def _write(self, blocks: list[set[str]], request: str, position: int) -> object:
        if not 0 <= position < len(blocks) * self.size:
            return "IndexError"
        index = position // self.size
        if len(blocks[index]) == 1:
            return "in place"
        if not self.free:
            return "MemoryError"
        self.free -= 1
        blocks[index].remove(request)
        blocks[index] = {request}
        return "copy"


def as_code(ops: Sequence[Op], num_blocks: int, size: int) -> str:
    calls = [f"{name}({request!r}{'' if name == 'free' else f', {last!r}'})" for name, request, last in ops]
    return f"BlockManager({num_blocks}, {size}): {'; '.join(calls)}"


def differs(model: Texts, op: Op, before: Tables, found: Any, after: Tables, num_free: Any) -> str | None:
    """Apply an operation to the model; return in words how the manager's answer differs."""
    name, request, argument = op
    wanted = model.apply(op)
    if isinstance(wanted, str) and wanted.endswith("Error"):
        if found != wanted:
            return f"{name} returned {found!r}; it must raise {wanted}"
    elif isinstance(found, str):
        return f"{name} raised {found}; it must not"
    elif name == "allocate" and wanted is None:
        if found is not None:
            return f"allocate returned {found!r}; too few blocks are free, so it must return None"
    elif name == "allocate":
        added = after[request][len(before.get(request, [])) :]
        if not isinstance(found, list) or len(found) != wanted or found != added:
            return f"allocate returned {found!r} and appended {added!r}; {wanted} blocks are missing"
    elif name == "write":
        index = int(argument) // model.size
        pair = None if wanted == "in place" else (before[request][index], after[request][index])
        if (tuple(found) if isinstance(found, list) else found) != pair:
            why = "its only owner writes in place" if pair is None else "(old, new) of the shared block"
            return f"write returned {found!r}; expected {pair!r}: {why}"
    return wrong_tables(num_free, model, after)


def wrong_tables(num_free: Any, model: Texts, tables: Tables) -> str | None:
    """Return how tables and free blocks break a rule: two requests share a block exactly if they may."""
    owners: dict[int, set[str]] = {}
    for request, sharers in model.groups.items():
        table = tables[request]
        if len(table) != len(sharers) or len(set(table)) != len(table):
            return f"table({request!r}) is {table!r}; it must have {len(sharers)} different blocks"
        for block, names in zip(table, sharers, strict=True):
            if owners.setdefault(block, names) is not names:
                return (
                    f"block {block} is in the tables of {request!r} and of a request that must not share it"
                )
    for request, sharers in model.groups.items():
        for block, names in zip(tables[request], sharers, strict=True):
            if any(block not in tables[other] for other in names):
                return f"block {block} of {request!r} must be shared by {', '.join(sorted(names))}"
    if 0 in owners:
        return "block 0 is in a table; it is the null block"
    for request, table in tables.items():
        if table and request not in model.groups:
            return f"table({request!r}) is {table!r}; this request has none"
    if num_free != model.free:
        return f"num_free is {num_free!r}; {model.free} blocks are in no table"
    return None


def first_difference(
    learner: Learner, ops: Sequence[Op], num_blocks: int, size: int
) -> tuple[int, str] | None:
    """Replay operations on a new manager; return the index of the first that goes wrong, and how."""
    calls = [(name, [request] if name == "free" else [request, last]) for name, request, last in ops]
    names = sorted({request for _, request, _ in ops} | {last for _, _, last in ops if isinstance(last, str)})
    make = learner.get("BlockManager")
    try:
        answers = learner.call("lessons.given.block_load:replay", make, num_blocks, size, calls, names)
    except GuestError as error:
        if error.is_stub:
            raise
        return len(ops) - 1, str(error)
    model, before = Texts(num_blocks, size), dict[str, list[int]]()
    for index, (op, (found, tables, num_free)) in enumerate(zip(ops, answers, strict=True)):
        if words := differs(model, op, before, found, tables, num_free):
            return index, words
        before = tables
    return None


def expect(learner: Learner, ops: list[Op], num_blocks: int = 8, size: int = 4) -> None:
    """Fail with the fewest operations that still go wrong."""
    if first_difference(learner, ops, num_blocks, size) is None:
        return
    ops = fewest(ops, lambda some: first_difference(learner, some, num_blocks, size) is not None)
    found = first_difference(learner, ops, num_blocks, size)
    index, words = found or (len(ops) - 1, "two replays of the same calls differ")
    raise Failed(words, example=as_code(ops[: index + 1], num_blocks, size))


@check(LAB)
def blocks_are_distinct(learner: Learner) -> None:
    """A new manager hands out blocks 1 to num_blocks - 1, each once, and never block 0."""
    manager = learner.new("BlockManager", 5, 4)
    if manager.num_free != 4:
        raise Failed(f"num_free is {manager.num_free!r}; expected 4", example="BlockManager(5, 4)")
    found = [*(manager.allocate("a", 4) or []), *(manager.allocate("b", 12) or [])]
    if sorted(found) != [1, 2, 3, 4]:
        raise Failed(
            f"it handed out {found}; expected each of 1 to 4 once",
            example="BlockManager(5, 4): allocate('a', 4); allocate('b', 12)",
        )


@check(LAB)
def a_table_grows_by_blocks(learner: Learner) -> None:
    """allocate appends ceil(num_tokens / block_size) blocks less those held; a table never shrinks."""
    for size in (1, 4):
        for tokens in ([1, 2, 3, 4, 5], [4, 8, 9], [5, 3, 0, 6]):
            expect(learner, [("allocate", "a", each) for each in tokens], 16, size)


@check(LAB)
def all_or_nothing(learner: Learner) -> None:
    """allocate returns None and changes nothing if free blocks are too few; exactly enough is enough."""
    expect(learner, [("allocate", "a", 8), ("allocate", "b", 12), ("allocate", "b", 8)], 5)
    expect(learner, [("allocate", "a", 16), ("allocate", "a", 17), ("allocate", "b", 1)], 5)


@check(LAB)
def a_fork_takes_no_block(learner: Learner) -> None:
    """fork shares all blocks and takes none; parent and child have tables of their own."""
    expect(learner, [("allocate", "a", 6), ("fork", "a", "b"), ("fork", "b", "c")])
    expect(learner, [("allocate", "a", 6), ("fork", "a", "b"), ("allocate", "b", 9), ("allocate", "a", 9)])


@check(LAB)
def a_shared_block_is_copied(learner: Learner) -> None:
    """The first write into a shared block replaces it in this table only and returns (old, new)."""
    start: list[Op] = [("allocate", "a", 10), ("fork", "a", "b")]
    for position in (0, 5, 11):
        expect(learner, [*start, ("write", "b", position), ("write", "b", position)])


@check(LAB)
def the_last_owner_writes_in_place(learner: Learner) -> None:
    """The only owner of a block writes in place, also after all others have copied it or ended."""
    start: list[Op] = [("allocate", "a", 6), ("fork", "a", "b")]
    expect(learner, [*start, ("write", "b", 5), ("write", "a", 5)])
    expect(learner, [*start, ("free", "a", 0), ("write", "b", 5)])


@check(LAB)
def no_room_for_a_copy_changes_nothing(learner: Learner) -> None:
    """Without a free block, write into a shared one raises MemoryError and changes nothing."""
    full: list[Op] = [("allocate", "a", 8), ("fork", "a", "b"), ("write", "b", 7)]
    expect(learner, [*full, ("write", "b", 7), ("free", "a", 0), ("write", "b", 7)], 3)


@check(LAB)
def the_last_owner_frees(learner: Learner) -> None:
    """A block becomes free when its last owner ends, not before and not twice."""
    start: list[Op] = [("allocate", "a", 8), ("fork", "a", "b"), ("free", "a", 0)]
    expect(learner, [*start, ("allocate", "c", 24), ("free", "b", 0), ("allocate", "c", 28)])


@check(LAB)
def mistakes_are_refused(learner: Learner) -> None:
    """An unknown request is a KeyError, a fork onto a table a ValueError, a position without slot an IndexError."""
    cases: list[list[Op]] = [
        [("free", "a", 0)],
        [("allocate", "a", 4), ("free", "a", 0), ("free", "a", 0)],
        [("fork", "a", "b")],
        [("write", "a", 0)],
        [("allocate", "a", 4), ("allocate", "b", 4), ("fork", "a", "b")],
        [("allocate", "a", 4), ("write", "a", 4)],
        [("allocate", "a", 4), ("write", "a", -1)],
    ]
    for ops in cases:
        expect(learner, ops)


@check(LAB)
def num_free_needs_no_search(learner: Learner) -> None:
    """num_free is O(1): its work is the same for 256 blocks and for 8,192."""

    def work_at(num_blocks: int) -> list[int]:
        manager = learner.new("BlockManager", num_blocks, 4)
        if manager.num_free != num_blocks - 1:
            raise Failed(f"num_free is {manager.num_free!r}", example=f"BlockManager({num_blocks}, 4)")
        return learner.costs(manager, [("allocate", "a", 64), ("free", "a"), *[("num_free",)] * 3], 3)

    constant(work_at, "num_free: O(1)", "blocks", (256, 8_192))


@check(LAB)
def a_table_is_a_copy(learner: Learner) -> None:
    """table returns a copy in the order of the tokens, or []: a caller that changes it changes no table."""
    make = learner.get("BlockManager")
    blocks, changed, unknown = learner.call("lessons.given.block_load:tables_after_a_change", make)
    if changed != blocks or len(blocks) != 3 or unknown != []:
        raise Failed(
            f"the table was {blocks}; after a caller changed its copy it is {changed}. table('x') is {unknown}, not []",
            example="found = table('a'); found.append(99); table('a')",
        )


@check(LAB)
def no_tokens_make_an_empty_table(learner: Learner) -> None:
    """A request for which 0 tokens are allocated has a table, an empty one: it can be forked and freed."""
    expect(learner, [("allocate", "a", 0), ("fork", "a", "b"), ("free", "a", 0), ("free", "b", 0)])


@check(LAB)
def random_families(learner: Learner) -> None:
    """600 random calls agree with a model that stores every block's sharers; a failure is cut to its fewest calls."""
    for seed in range(15):
        rng, size = Random(seed), (1, 2, 4)[seed % 3]
        expect(learner, random_ops(rng, 40), 6 + seed, size)


def random_ops(rng: Random, count: int) -> list[Op]:
    ops: list[Op] = []
    for _ in range(count):
        name = rng.choices(["allocate", "fork", "write", "free"], [4, 3, 4, 2])[0]
        request = rng.choice("abcde")
        last: dict[str, int | str] = {
            "allocate": rng.randint(0, 12),
            "fork": rng.choice("abcde"),
            "write": rng.randint(0, 9),
        }
        ops.append((name, request, last.get(name, 0)))
    return ops


# -- the engine's scheduler


class LabPool(BlockPool):
    """The engine's pool with the learner's choice of blocks; its own record judges each answer."""

    def __init__(self, num_blocks: int, block_size: int, manager: Any) -> None:
        super().__init__(num_blocks)
        self._size, self._manager = block_size, manager
        self._held: dict[str, int] = {}

    def take(self, count: int, request_id: str | None = None) -> list[Block]:
        request, held = str(request_id), self._held.get(str(request_id), 0)
        found = self._manager.allocate(request, (held + count - 1) * self._size + 1 if count else 0)
        if not isinstance(found, list) or len(found) != count:
            raise Failed(f"allocate({request!r}, ...) returned {found!r}; the scheduler needs {count} blocks")
        taken = [self.blocks[index] for index in found]
        for block in taken:
            if block.ref_count or block is self.null_block:
                raise Failed(f"allocate({request!r}, ...) returned block {block.block_id}, which is in use")
            self.free.remove(block)
            self.free.push_front(block)
            super().take(1, request_id)
        self._held[request] = held + count
        return taken

    def release(self, blocks: Sequence[Block], request_id: str | None = None) -> None:
        super().release(blocks, request_id)
        if blocks:
            self._manager.free(str(request_id))
            self._held.pop(str(request_id))
        if (free := self._manager.num_free) != len(self.free):
            raise Failed(f"num_free is {free!r} after {request_id!r} ended; {len(self.free)} blocks are free")


class LabKV(KVManager):
    def __init__(self, config: CacheConfig, manager: Any, **options: Any) -> None:
        super().__init__(config, **options)
        self.pool = LabPool(config.num_blocks, config.block_size, manager)


def behind_engine(learner: Learner, config: SchedulerConfig, cache: CacheConfig) -> Scheduler:
    """Return the engine's scheduler on the learner's manager."""
    manager = learner.new("BlockManager", cache.num_blocks, cache.block_size)
    return LabScheduler(config, cache, partial(LabKV, manager=manager))


def service(asks: list[Ask], learner: Learner | None = None) -> Service:
    """Return the engine's scheduler, with its own blocks or the learner's, and the requests."""
    num_blocks = 1 + max(-(-(ask.common + ask.output) // 4) for ask in asks) + len(asks) // 3
    config, cache = SchedulerConfig(16, 4, 64), CacheConfig(num_blocks, 4, False)
    scheduler = Scheduler(config, cache) if learner is None else behind_engine(learner, config, cache)
    return scheduler, requests_of(asks)


@check(LAB)
def the_scheduler_runs_on_it(learner: Learner) -> None:
    """The engine's scheduler, with preemptions, makes the same decisions on your manager as on ours."""
    rng = Random(17)
    for count in (1, 1, 2, 2, 3, 3, 4, 6, 8):
        asks = [Ask(0, rng.randint(1, 14), 0, rng.randint(1, 12)) for _ in range(count)]
        decide_the_same(LAB, asks, service, partial(service, learner=learner), "on our manager")

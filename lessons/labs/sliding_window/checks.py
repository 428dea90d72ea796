"""Checks of the lab sliding-window: a model asks each position what it sees; then the engine runs on it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from random import Random
from typing import Any, NamedTuple

from engine.config import CacheConfig, SchedulerConfig
from engine.core.blocks import Block
from engine.core.kv_manager import KVManager
from engine.core.request import Request
from engine.core.scheduler import Scheduler
from lessons.course.checking import Failed, Learner, check, smallest
from lessons.labs.serving import Ask, LabScheduler, Service, decide_the_same, requests_of

LAB = "sliding-window"


def seen_blocks(position: int, window: int, size: int) -> set[int]:
    """Return the indices of the blocks with a position that the token at `position` sees, its own left out."""
    return {at // size for at in range(position) if position - at < window}


class Freed(NamedTuple):
    """A call of free with the table 1, 2, 3, ..., 0 for the first `before` blocks."""

    window: int
    block_size: int
    num_computed: int
    blocks: int
    before: int = 0


def expect_free(learner: Learner, cases: Iterable[Freed]) -> None:
    def run(case: Freed) -> None:
        table = [0 if index < case.before else index + 1 for index in range(case.blocks)]
        later = range(case.num_computed, case.num_computed + case.window * case.block_size + 2)
        needed = {each for position in later for each in seen_blocks(position, case.window, case.block_size)}
        first = min([*needed, case.num_computed // case.block_size])
        left = [0 if index < first else each for index, each in enumerate(table)]
        wanted = (left, [each for each in table[:first] if each])
        found = learner.new("SlidingWindow", case.window, case.block_size).free(table, case.num_computed)
        if tuple(found) != wanted:
            raise Failed(f"free({table}, {case.num_computed}) returned {tuple(found)!r}; expected {wanted!r}")

    smallest(cases, run)


class Cached(NamedTuple):
    """A call of hit; a letter per full block, "x" if it is cached."""

    window: int
    block_size: int
    blocks: str
    num_tokens: int


def longest(case: Cached) -> list[int]:
    """Try each length from the longest down."""
    cached = {index for index, each in enumerate(case.blocks) if each == "x"}
    for count in range((case.num_tokens - 1) // case.block_size, 0, -1):
        needed = seen_blocks(count * case.block_size, case.window, case.block_size) | {count - 1}
        if needed <= cached:
            return [index + 1 if index in needed else 0 for index in range(count)]
    return []


def expect_hit(learner: Learner, cases: Iterable[Cached]) -> None:
    def run(case: Cached) -> None:
        found = [index + 1 if each == "x" else None for index, each in enumerate(case.blocks)]
        answer = learner.new("SlidingWindow", case.window, case.block_size).hit(found, case.num_tokens)
        if answer != (wanted := longest(case)):
            raise Failed(f"hit({found}, {case.num_tokens}) returned {answer!r}; expected {wanted}")

    smallest(cases, run)


@check(LAB)
def the_window_counts_the_token_itself(learner: Learner) -> None:
    """A block is freed in the step after which no later token sees it: not one token earlier, not one later."""
    for window, size in ((6, 4), (5, 4), (4, 4), (1, 4), (3, 1)):
        expect_free(learner, [Freed(window, size, computed, 4) for computed in range(size * 4 + 1)])


@check(LAB)
def the_table_keeps_its_length(learner: Learner) -> None:
    """free puts 0 in place of each freed block; blocks that are 0 already are not freed again."""
    expect_free(learner, [Freed(4, 2, 9, 6, before) for before in range(4)])
    expect_free(learner, [Freed(4, 2, 3, 6), Freed(40, 2, 12, 6), Freed(2, 2, 20, 10, 5)])


@check(LAB)
def random_tables_are_freed(learner: Learner) -> None:
    """200 random tables: freed is exactly what no later position sees."""
    rng, cases = Random(3), []
    for number in range(200):
        size, blocks = rng.randint(1, 5), 1 + number // 20
        computed = rng.randint(0, size * blocks)
        window = rng.randint(1, 12)
        done = max(0, computed - window + 1) // size
        cases.append(Freed(window, size, computed, blocks, rng.randint(0, done)))
    expect_free(learner, cases)


@check(LAB)
def a_hit_needs_what_the_next_token_sees(learner: Learner) -> None:
    """Blocks before the window need not be cached; 0 stands for them, even if they are."""
    expect_hit(learner, [Cached(6, 4, "..xx", 17), Cached(6, 4, "xxxx", 17), Cached(5, 4, "...x", 17)])
    expect_hit(learner, [Cached(1, 4, "..x", 13), Cached(2, 4, "..x", 13), Cached(6, 4, ".x.x", 17)])


@check(LAB)
def the_longest_hit_counts(learner: Learner) -> None:
    """The longest of several hits is returned; a gap in its window rules one out, a gap elsewhere does not."""
    expect_hit(learner, [Cached(6, 4, each, 21) for each in ("xx.xx", "xxx.x", "xxxx.", "x.xx.", ".xx.x")])


@check(LAB)
def a_short_start_is_a_hit(learner: Learner) -> None:
    """A prefix shorter than the window is a hit if all of its blocks are cached."""
    expect_hit(learner, [Cached(30, 4, each, 17) for each in ("x...", "xx..", "xx.x", ".xxx", "xxxx")])


@check(LAB)
def one_token_is_computed(learner: Learner) -> None:
    """A hit never covers all tokens."""
    expect_hit(learner, [Cached(4, 4, "xx", tokens) for tokens in (8, 9)])
    expect_hit(learner, [Cached(3, 1, "xxx", 3), Cached(4, 4, "x", 4)])


@check(LAB)
def random_hits(learner: Learner) -> None:
    """300 random caches: always the longest possible hit."""
    rng, cases = Random(4), []
    for number in range(300):
        size, blocks = rng.randint(1, 4), number // 30
        letters = "".join(rng.choices("x.", [3, 1], k=blocks))
        cases.append(
            Cached(rng.randint(1, 14), size, letters, max(1, size * blocks + rng.randint(0, size - 1)))
        )
    expect_hit(learner, cases)


@check(LAB)
def most_blocks_at_once(learner: Learner) -> None:
    """max_blocks is exact: some step holds so many blocks, and none holds more."""
    rng, cases = Random(6), []
    for number in range(200):
        cases.append((rng.randint(1, 9), rng.randint(1, 5), 1 + number // 5, rng.randint(1, 8)))

    def run(case: tuple[int, int, int, int]) -> None:
        window, size, num_tokens, chunk = case
        held = []
        for start in range(num_tokens):
            step = range(start, min(start + chunk, num_tokens))
            held.append(len({each for at in step for each in seen_blocks(at, window, size) | {at // size}}))
        found = learner.new("SlidingWindow", window, size).max_blocks(num_tokens, chunk)
        if found != max(held):
            raise Failed(
                f"max_blocks returned {found!r}; the largest step holds {max(held)}",
                example=f"SlidingWindow({window}, {size}).max_blocks({num_tokens}, {chunk})",
            )

    smallest(cases, run)


# -- the engine's scheduler


class LabKV(KVManager):
    """The engine's KV manager with the learner's choice of blocks behind the window."""

    def __init__(self, config: CacheConfig, part: Any, **options: Any) -> None:
        super().__init__(config, **options)
        self._part = part

    def _match_window(self, request: Request, window: int) -> list[Block]:
        cached = [self.pool.cached.get(each) for each in request.block_hashes]
        table = self._part.hit([block and block.block_id for block in cached], request.num_tokens)
        return [self.pool.blocks[each] for each in table]

    def free_behind_window(self, request: Request) -> int:
        before = [block.block_id for block in request.blocks]
        table, freed = self._part.free(before, request.num_computed_tokens)
        if freed != [old for old, new in zip(before, table, strict=True) if old != new]:
            raise Failed(f"free({before}, {request.num_computed_tokens}) returned {(table, freed)}")
        self.pool.release([self.pool.blocks[each] for each in freed], request.request_id)
        request.blocks[:] = [self.pool.blocks[each] for each in table]
        request.num_blocks_behind_window = table.count(0)
        return len(freed)


def behind_engine(learner: Learner, config: SchedulerConfig, cache: CacheConfig) -> Scheduler:
    """Return the engine's scheduler with the learner's part."""
    part = learner.new("SlidingWindow", cache.sliding_window, cache.block_size)
    return LabScheduler(config, cache, partial(LabKV, part=part))


def service(asks: list[Ask], window: int, learner: Learner | None = None) -> Service:
    """Return the engine's scheduler, alone or with the learner's part, and the requests."""
    config, cache = SchedulerConfig(16, 3, 64), CacheConfig(18, 4, True, sliding_window=window)
    scheduler = Scheduler(config, cache) if learner is None else behind_engine(learner, config, cache)
    return scheduler, requests_of(asks)


@check(LAB)
def the_scheduler_runs_on_it(learner: Learner) -> None:
    """The engine's scheduler, with evictions, makes the same decisions with your part as with ours."""
    rng = Random(29)
    for count, window in ((1, 5), (2, 6), (3, 9), (5, 4), (8, 10), (12, 7)):
        asks = [
            Ask(rng.randint(0, 1), rng.randint(4, 24), rng.randint(0, 6), rng.randint(1, 12))
            for _ in range(count)
        ]
        decide_the_same(
            LAB,
            asks,
            partial(service, window=window),
            partial(service, window=window, learner=learner),
            "with ours",
            f"window {window}: {{}}".format,
        )

"""Learners' schedulers and memory behind the engine's seams: right ones serve, broken ones are named."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from lessons.mine.errors import PieceError
from lessons.mine.memory import MinePool
from lessons.mine.pieces import Pieces
from lessons.mine.scheduler import MineScheduler
from tests.contracts.test_block_pool_contract import judge
from tests.contracts.test_scheduler_contract import verdict
from tests.core.shadow_kv import failure
from tests.core.workloads import Workload
from tests.lessons.mine_pieces import pieces

CHUNKED, WHOLE, ALLOCATOR, HASHES, CACHE = "10.1", "09.2", "07.1", "11.1", "11.2"


@pytest.mark.parametrize(
    "exercises",
    [(CHUNKED, ALLOCATOR, HASHES, CACHE), (CHUNKED,), (ALLOCATOR, CACHE), (HASHES,), (ALLOCATOR,), (CACHE,)],
    ids="+".join,
)
def test_pieces_keep_the_scheduler_contract(exercises: tuple[str, ...]) -> None:
    """Random workloads with preemptions, chunks, drafts, aborts and prefix hits; integrity after every step."""
    problem = verdict(partial(MineScheduler, pieces=pieces(*exercises)), 60)
    assert problem is None, problem


def test_a_scheduler_of_whole_prompts_serves_workloads_without_chunks() -> None:
    make = partial(MineScheduler, pieces=pieces(WHOLE, ALLOCATOR, CACHE))
    served = 0
    for seed in range(120):
        workload = Workload.random(seed)
        if workload.scheduler.max_num_batched_tokens >= workload.scheduler.max_model_len:
            served += 1
            problem = failure(workload, make, strict=False)
            assert problem is None, f"workload {seed}: {problem}"
    assert served > 5


def test_a_pool_of_pieces_keeps_the_block_pool_contract() -> None:
    judge(partial(MinePool, pieces=pieces(ALLOCATOR, CACHE)))


def first_error(broken: Pieces, count: int = 60) -> PieceError:
    """Return the first error over random workloads."""
    for seed in range(count):
        error = failure(Workload.random(seed), partial(MineScheduler, pieces=broken), strict=False)
        if isinstance(error, PieceError):
            return error
        assert error is None, f"workload {seed} failed without naming the piece: {error!r}"
    raise AssertionError("no workload noticed the broken piece")


def scheduler_that(body: str) -> Pieces:
    """Return pieces with a subclass of the scheduler whose plan `rows, preempted` is changed by `body`."""
    lines = "\n        ".join(body.splitlines())
    return pieces(
        CHUNKED,
        ex_10_1=f"""
class ChunkedScheduler(ChunkedScheduler):
    def schedule(self, running, waiting, num_free_blocks):
        rows, preempted = super().schedule(running, waiting, num_free_blocks)
        rows, preempted = list(rows), list(preempted)
        ids = [seq.id for seq in running]
        {lines}
        return Plan(rows, preempted)
""",
    )


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ("rows = [(name, 1000) for name, _ in rows]", "a row computes 1 token"),
        ("self = None; self.x", "it raises only"),
        ("rows = rows + [('ghost', 1)]", "rows name running or waiting"),
        ("rows = rows + rows[:1]", "a request is named once"),
        ("rows, preempted = [], []", "every step computes something"),
        ("preempted = preempted + ['ghost']", "only running requests are preempted"),
        ("preempted = preempted or ids[:1]", "a preempted request gets no row|victims are"),
        (
            "if len(ids) > 1 and not preempted: rows = [r for r in rows if r[0] != ids[0]]",
            "running requests go",
        ),
        (
            "new = [r for r in rows if r[0] not in ids]\nif len(new) > 1: rows.remove(new[0])",
            "admitted in order",
        ),
        ("rows = [(name, 0) for name, _ in rows]", "a row computes 1 token"),
        ("return None", "schedule returns Plan"),
        ("rows = [(name, float(n)) for name, n in rows]", "a row is"),
        ("preempted = [each for each in preempted if False]", "blocks suffice"),
    ],
)
def test_a_broken_plan_is_reported_by_rule_and_step(body: str, rule: str) -> None:
    error = first_error(scheduler_that(body))
    assert any(part in str(error) for part in rule.split("|")), error
    assert "scheduler (exercise 10.1)" in str(error) and "step " in str(error)


@pytest.mark.parametrize(
    ("limit", "rule"),
    [("token_budget + 1", "rows stay within the token budget"), ("max_num_seqs + 1", "at most max_num_seqs")],
)
def test_a_scheduler_beyond_its_limits_is_reported(limit: str, rule: str) -> None:
    name = limit.split()[0]
    source = f"""
class ChunkedScheduler(ChunkedScheduler):
    def __init__(self, max_num_seqs, token_budget, block_size):
        {name} = {limit}
        super().__init__(max_num_seqs, token_budget, block_size)
"""
    assert rule in str(first_error(pieces(CHUNKED, ex_10_1=source)))


@pytest.mark.parametrize(
    ("exercise", "method", "rule"),
    [
        (ALLOCATOR, "def take(self, count): return [0] * count", "different blocks"),
        (ALLOCATOR, "def take(self, count): super().take(count); return list(range(count))", "is free when"),
        (ALLOCATOR, "def take(self, count): return [-1] * count", "a block id is|different"),
        (ALLOCATOR, "def take(self, count): raise MemoryError('full')", "it raises only"),
        (CACHE, "def insert(self, h, b): super().insert(h, b); return True", "insert keeps the first"),
        (CACHE, "def evict(self): return None", "evict finds a block"),
        (CACHE, "def evict(self): super().evict(); return 0", "evict leaves blocks"),
        (CACHE, "def match(self, hashes): return [0] * len(hashes)", "match returns the block"),
    ],
)
def test_broken_memory_is_reported_instead_of_wrong_tokens(exercise: str, method: str, rule: str) -> None:
    name = {ALLOCATOR: "BlockAllocator", CACHE: "PrefixCache"}[exercise]
    extra: Any = {f"ex_{exercise.replace('.', '_')}": f"class {name}({name}):\n    {method}\n"}
    error = first_error(pieces(ALLOCATOR, CACHE, **extra))
    assert any(part in str(error) for part in rule.split("|")), error


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("import hashlib\ndef block_hashes(t, n, salt=b''): return [hashlib.sha256(bytes(t[i:i+n])).digest() for i in "
         "range(0, len(t) - n + 1, n)]", "equal hashes mean equal prefixes"),
        ("def block_hashes(t, n, salt=b''): return [str((salt, t)).encode()] * (len(t) // n)", "never change|equal"),
        ("def block_hashes(t, n, salt=b''): return []", "one hash"),
    ],
)  # fmt: skip
def test_broken_hashes_are_reported_instead_of_wrong_hits(source: str, rule: str) -> None:
    error = first_error(pieces(HASHES, ex_11_1=source))
    assert any(part in str(error) for part in rule.split("|")), error

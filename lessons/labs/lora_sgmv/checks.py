"""Checks of the labs cpp-, cuda- and triton-lora-sgmv: each half against the definition in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import numpy as np
from numpy.typing import NDArray

from lessons.course.checking import Failed, Learner, check, smallest
from lessons.course.native import Grid, Out, about, near, run, run_triton
from lessons.labs.kernel_checks import check_accesses

LAB = "lora-sgmv"
SHRINK, EXPAND = "lora_shrink", "lora_expand"
THREADS, WARPS, TILE = 128, 4, 8
NO_ADAPTER = -1
WITHIN = 1e-6
"""Error bound, as a share of the sum of the absolute terms."""
KEPT = np.float32(7)
"""In `low` where lora_shrink writes nothing."""
Array = NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    token_adapter: tuple[int, ...]
    ranks: tuple[int, ...] = (4,)
    """Rank of each adapter."""
    max_rank: int = 8
    depth: int = 32
    columns: int = 32
    seed: int = 0

    def __str__(self) -> str:
        return (
            f"adapters of the rows {list(self.token_adapter)}, ranks {list(self.ranks)} of {self.max_rank}, "
            f"depth {self.depth}, {self.columns} columns"
        )


@dataclass(frozen=True)
class Data:
    x: Array
    a: Array
    low: Array
    b: Array
    y: Array
    order: NDArray[np.int32]
    starts: NDArray[np.int32]
    ranks: NDArray[np.int32]
    scaling: Array


def make(case: Case, stale: float = np.nan) -> Data:
    """Draw the arrays; `stale` behind each adapter's rank, and in `low` where nothing is read or written."""
    rng = np.random.default_rng(case.seed)
    adapters, tokens = len(case.ranks), len(case.token_adapter)

    def numbers(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32)

    a, b = numbers(adapters, case.max_rank, case.depth), numbers(adapters, case.max_rank, case.columns)
    x, low, y = numbers(tokens, case.depth), numbers(tokens, case.max_rank), numbers(tokens, case.columns)
    for adapter, rank in enumerate(case.ranks):
        a[adapter, rank:] = b[adapter, rank:] = stale
    for token, adapter in enumerate(case.token_adapter):
        low[token, 0 if adapter < 0 else case.ranks[adapter] :] = stale
    of = np.array(case.token_adapter, np.int64)
    order = np.concatenate([np.flatnonzero(of == adapter) for adapter in range(adapters)]).astype(np.int32)
    starts = np.searchsorted(of[order], np.arange(adapters + 1)).astype(np.int32)
    scaling = (0.5 + rng.random(adapters)).astype(np.float32)
    return Data(x, a, low, b, y, order, starts, np.array(case.ranks, np.int32), scaling)


def before(data: Data, name: str) -> Array:
    """Return what lora_shrink finds in `low`, all of it numbers, or lora_expand in y."""
    return np.where(np.isnan(data.low), KEPT, data.low) if name == SHRINK else data.y


def arguments(case: Case, data: Data, name: str, out: Out | Array) -> list[object]:
    """Return the arguments of a C++ function that writes to `out`."""
    lists = data.order, data.starts, data.ranks
    if name == SHRINK:
        return [data.x, data.a, *lists, out, len(data.ranks), case.max_rank, case.depth]
    return [data.low, data.b, *lists, data.scaling, out, len(data.ranks), case.max_rank, case.columns]


def found(learner: Learner, case: Case, data: Data, name: str, backwards: bool = False) -> Array:
    """Return `low` after lora_shrink, or `y` after lora_expand."""
    out = Out(before(data, name).copy())
    args = arguments(case, data, name, out)
    with about(str(case)):
        if learner.language == "triton":
            [result] = run_triton(learner, name, *args[:-3])
            return result
        if learner.language == "cuda":
            del args[-3]  # adapters: the grid has them
        wide = -(-case.max_rank // WARPS) if name == SHRINK else -(-case.columns // (4 * THREADS))
        grid = Grid((len(data.ranks), max(1, -(-len(data.order) // TILE)), wide), THREADS)
        [result] = run(learner, name, *args, grid=grid, backwards=backwards)
    return result


def expected(case: Case, data: Data, name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the right result in float64, and the sums of the absolute terms (tiny where nothing is written)."""
    result = before(data, name).astype(np.float64)
    size = np.full(result.shape, 1e-20)
    for token, adapter in enumerate(case.token_adapter):
        if adapter >= 0:
            rank = case.ranks[adapter]
            a, b = data.a[adapter, :rank].astype(np.float64), data.b[adapter, :rank].astype(np.float64)
            if name == SHRINK:
                result[token, :rank] = a @ data.x[token]
                size[token, :rank] = np.abs(a) @ np.abs(data.x[token])
            else:
                low = data.scaling[adapter] * data.low[token, :rank].astype(np.float64)
                size[token] = np.abs(result[token]) + np.abs(low) @ np.abs(b)
                result[token] += low @ b
    return result, size


def compare(learner: Learner, case: Case, *names: str, backwards: bool = False) -> None:
    data = make(case)
    for name in names or (SHRINK, EXPAND):
        mine = found(learner, case, data, name, backwards)
        right, size = expected(case, data, name)
        near("low" if name == SHRINK else "y", mine, right, size, str(case), WITHIN)


@check(LAB)
def one_row_shrinks(learner: Learner) -> None:
    """lora_shrink of one row: low[r] is the dot product of x with row r of A."""
    compare(learner, Case((0,), (8,)), SHRINK)


@check(LAB)
def one_row_expands(learner: Learner) -> None:
    """lora_expand of one row: the scaled sum is added to what y holds."""
    compare(learner, Case((0,), (8,)), EXPAND)


@check(LAB)
def rows_of_one_adapter(learner: Learner) -> None:
    """1 to 70 rows share an adapter: fewer and more than a tile."""
    smallest([2, 3, 5, 8, 9, 17, 70], lambda rows: compare(learner, Case((0,) * rows, (8,), seed=rows)))


@check(LAB)
def every_adapter_has_its_own_matrices(learner: Learner) -> None:
    """Rows of three adapters, mixed, in the order of the list."""
    compare(learner, Case((2, 0, 1, 1, 2, 2), (8, 8, 8)))


@check(LAB)
def adapters_without_rows(learner: Learner) -> None:
    """Adapters that no row uses: at the front, in the middle, at the end."""
    smallest(
        [(1, 1), (0, 2, 0), (2, 2, 5), (5,)], lambda of: compare(learner, Case(of, (8,) * 6, seed=len(of)))
    )


@check(LAB)
def rows_without_an_adapter_stay(learner: Learner) -> None:
    """Rows of the base model keep their low and y; one batch has nothing else."""
    smallest([(-1, 0), (0, -1, -1, 1), (-1, -1)], lambda of: compare(learner, Case(of, (8, 8), seed=len(of))))


@check(LAB)
def ranks_differ(learner: Learner) -> None:
    """Adapters of rank 1 to max_rank in one batch; what lies behind a rank is NaN."""
    ranks = (1, 8, 3, 7)
    smallest([(2,), (0, 1), (3, 1, 0, 2, -1, 1)], lambda of: compare(learner, Case(of, ranks)))


@check(LAB)
def other_sizes(learner: Learner) -> None:
    """Depths and columns of 4 to 1,100, slots of rank 4 to 64."""
    sizes = [(4, 4, 4), (36, 20, 8), (132, 260, 16), (1100, 516, 16), (64, 1028, 64)]
    smallest(
        sizes,
        lambda size: compare(
            learner, Case((0, 1, 1, -1), (max(1, size[2] - 3), size[2]), size[2], *size[:2], seed=size[0])
        ),
    )


@check(LAB)
def random_batches(learner: Learner) -> None:
    """20 random batches: ranks, rows without adapter, sizes."""
    rng = Random(3)
    cases = []
    for seed in range(20):
        max_rank, adapters = rng.choice([4, 8, 16]), rng.randint(1, 5)
        of = [rng.randint(NO_ADAPTER, adapters - 1) for _ in range(rng.randint(1, 24))]
        ranks = tuple(rng.randint(1, max_rank) for _ in range(adapters))
        sizes = 4 * rng.randint(1, 40), 4 * rng.randint(1, 40)
        cases.append(Case(tuple(of), ranks, max_rank, *sizes, seed=seed))
    smallest(sorted(cases, key=lambda case: len(case.token_adapter)), lambda case: compare(learner, case))


@check("cpp-lora-sgmv")
@check("triton-lora-sgmv")
def any_size(learner: Learner) -> None:
    """Depths, columns and ranks that are no multiple of a vector."""
    sizes = [(1, 1, 1), (3, 5, 2), (17, 33, 5), (100, 70, 13)]
    smallest(
        sizes, lambda size: compare(learner, Case((0, 0, 1), (size[2], 1), size[2], *size[:2], seed=size[0]))
    )


@check("cpp-lora-sgmv")
@check("cuda-lora-sgmv")
def a_row_has_the_same_bits_alone(learner: Learner) -> None:
    """A row gives the same bits in a batch and alone."""
    case = Case((0, 1, 0, 0, 1, 0), (8, 5), depth=220, columns=52, seed=4)
    data = make(case)
    for name in (SHRINK, EXPAND):
        together = found(learner, case, data, name)
        for token, adapter in enumerate(case.token_adapter):
            of = [NO_ADAPTER] * len(case.token_adapter)
            of[token] = adapter
            alone = replace(case, token_adapter=tuple(of))
            lists = make(alone)
            apart = replace(data, order=lists.order, starts=lists.starts)
            if found(learner, alone, apart, name)[token].tobytes() != together[token].tobytes():
                raise Failed(f"{name}: row {token} has other bits in a batch than alone", example=str(case))


@check("cuda-lora-sgmv")
def threads_run_in_any_order(learner: Learner) -> None:
    """The result stays the same if the threads of a block run from the last to the first."""
    cases = [Case((0, 0, 1), (8, 3), seed=1), Case((0,) * 11 + (1,), (8, 16), 16, 260, 520, seed=2)]
    smallest(cases, lambda case: compare(learner, case, backwards=True))


BIG = Case((0,) * 8, (16,), 16, 1_024, 512)
check_accesses(
    LAB,
    lambda learner, size: compare(learner, Case((1, 0, 0, -1), (1, size[2]), size[2], *size[:2])),
    cpp=[(1, 1, 1), (17, 33, 5), (36, 20, 8)],
    cuda=[(4, 4, 4), (36, 20, 8), (132, 260, 16)],
    triton=[(1, 1, 1), (17, 33, 5), (36, 20, 8)],
    launches={
        f"lora_shrink, {BIG}": lambda learner: compare(learner, BIG, SHRINK),
        f"lora_expand, {BIG}": lambda learner: compare(learner, BIG, EXPAND),
    },
)

"""Checks of the labs cpp-, cuda- and triton-paged-decode: against softmax over dense keys in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import numpy as np
from numpy.typing import NDArray

from lessons.course.checking import Learner, check, smallest
from lessons.course.native import Grid, Out, about, near, run, run_triton
from lessons.labs.kernel_checks import check_accesses

LAB = "paged-decode"
FUNCTION = "paged_decode"
THREADS = 128
STALE = 1 << 28
"""In unused columns of a table: an address that is not there."""
Array = NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    seq_lens: tuple[int, ...]
    heads: int = 2
    kv_heads: int = 2
    head_dim: int = 32
    block_size: int = 4
    window: int = 0
    size: float = 1.0
    """Standard deviation of the queries: large ones make large scores."""
    seed: int = 0

    def __str__(self) -> str:
        lengths = ", ".join(map(str, self.seq_lens))
        window = f", window {self.window}" if self.window else ""
        return (
            f"rows of {lengths} tokens, block size {self.block_size}, {self.heads} heads, "
            f"{self.kv_heads} kv heads of {self.head_dim}{window}"
        )

    @property
    def scale(self) -> float:
        return float(self.head_dim) ** -0.5


@dataclass(frozen=True)
class Data:
    query: Array
    kv: Array
    table: NDArray[np.int32]
    seq_lens: NDArray[np.int32]
    dense: list[tuple[Array, Array]]
    """Keys and values of each row: [tokens, kv_heads, head_dim]."""


def make(case: Case) -> Data:
    """Scatter the rows over blocks in random order; NaN in every slot without a token."""
    rng, order = np.random.default_rng(case.seed), Random(case.seed)
    counts = [-(-length // case.block_size) for length in case.seq_lens]
    shape = (sum(counts) + 1, 2, case.kv_heads, case.block_size, case.head_dim)
    kv = np.full(shape, np.nan, np.float32)
    table = np.full((len(counts), max(counts) + 1), STALE, np.int32)
    free, dense = list(range(len(kv))), []
    order.shuffle(free)
    for row, length in enumerate(case.seq_lens):
        tokens = rng.standard_normal((2, length, case.kv_heads, case.head_dim)).astype(np.float32)
        for column in range(counts[row]):
            table[row, column] = block = free.pop()
            part = tokens[:, column * case.block_size : (column + 1) * case.block_size]
            kv[block, :, :, : part.shape[1]] = part.transpose(0, 2, 1, 3)
        dense.append((tokens[0], tokens[1]))
    query = case.size * rng.standard_normal((len(counts), case.heads, case.head_dim))
    return Data(query.astype(np.float32), kv, table, np.array(case.seq_lens, np.int32), dense)


def expected(case: Case, data: Data) -> NDArray[np.float64]:
    out = np.zeros(data.query.shape)
    for row, (keys, values) in enumerate(data.dense):
        first = max(0, len(keys) - case.window) if case.window else 0
        for head in range(case.heads):
            own = head // (case.heads // case.kv_heads)
            scores = case.scale * (
                keys[first:, own].astype(np.float64) @ data.query[row, head].astype(np.float64)
            )
            weights = np.exp(scores - scores.max())
            out[row, head] = weights @ values[first:, own] / weights.sum()
    return out


def arguments(case: Case, data: Data, out: Out | Array) -> list[object]:
    """Return the arguments of the C++ function."""
    rows, heads, dim = data.query.shape
    sizes = [rows, heads, case.kv_heads, dim, case.block_size, data.table.shape[1], case.window, case.scale]
    return [data.query, data.kv, data.table, data.seq_lens, out, *sizes]


def compare(learner: Learner, case: Case, *, backwards: bool = False) -> None:
    data = make(case)
    out = Out(np.full_like(data.query, np.nan))
    with about(str(case)):
        if learner.language == "triton":
            tensors = data.query, data.kv, data.table, data.seq_lens
            [found] = run_triton(learner, FUNCTION, *tensors, case.window, case.scale)
        else:
            args = arguments(case, data, out)
            grid = Grid((case.heads, len(case.seq_lens)), THREADS)
            if learner.language == "cuda":
                del args[5]  # rows: the grid has them
            [found] = run(learner, FUNCTION, *args, grid=grid, backwards=backwards)
    largest = max(float(np.abs(values).max()) for _, values in data.dense)
    near("out", found, expected(case, data), largest, str(case), within=2e-5)


@check(LAB)
def one_token_is_its_value(learner: Learner) -> None:
    """A row of one token: the output is that token's value."""
    compare(learner, Case((1,)))


@check(LAB)
def softmax_over_one_block(learner: Learner) -> None:
    """A full block: weights are the softmax of the scaled scores."""
    compare(learner, Case((4,)))


@check(LAB)
def tokens_follow_the_table(learner: Learner) -> None:
    """Several blocks in an order that is not that of their ids."""
    cases = [*(Case((4 * blocks,), seed=blocks) for blocks in (2, 3, 6)), Case((280,), block_size=16)]
    smallest(cases, lambda case: compare(learner, case))


@check(LAB)
def the_last_block_is_cut(learner: Learner) -> None:
    """Slots behind the last token are not read."""
    smallest([2, 3, 5, 6, 7, 9, 13], lambda length: compare(learner, Case((length,), seed=length)))


@check(LAB)
def every_row_has_its_own_table(learner: Learner) -> None:
    """Rows of different lengths in one call."""
    compare(learner, Case((9, 1, 16, 3), seed=1))


@check(LAB)
def heads_of_a_group_share_keys(learner: Learner) -> None:
    """Query head h reads kv head h / (heads / kv_heads)."""
    smallest(
        [(4, 2), (4, 1), (6, 2), (8, 1)], lambda pair: compare(learner, Case((7, 5), *pair, seed=sum(pair)))
    )


@check(LAB)
def large_scores(learner: Learner) -> None:
    """Scores of thousands overflow nothing, wherever the largest stands."""
    cases = [Case((24,), size=1000.0, seed=seed) for seed in range(6)]
    cases += [Case((150,), block_size=16, size=1000.0, seed=seed) for seed in range(3)]
    smallest(cases, lambda case: compare(learner, case))


@check(LAB)
def a_window_hides_old_tokens(learner: Learner) -> None:
    """A window of w shows the last w tokens, also if it begins within a block."""
    windows = [1, 2, 3, 4, 5, 8, 13, 100]
    smallest(windows, lambda window: compare(learner, Case((13, 6), window=window, seed=window)))


@check(LAB)
def other_sizes(learner: Learner) -> None:
    """Block sizes of 4 to 32, heads of up to 128 numbers."""
    cases = [
        Case((37, 18), block_size=size, head_dim=dim, seed=size + dim)
        for size in (4, 8, 16, 32)
        for dim in (32, 64, 128)
    ]
    smallest(cases, lambda case: compare(learner, case))


@check(LAB)
def random_batches(learner: Learner) -> None:
    """20 random batches with groups, windows and partial blocks."""
    rng = Random(7)
    cases = []
    for seed in range(20):
        kv_heads = rng.choice([1, 2])
        lengths = tuple(rng.randint(1, 60) for _ in range(rng.randint(1, 4)))
        case = Case(
            lengths, kv_heads * rng.choice([1, 2, 3]), kv_heads, rng.choice([32, 64]), rng.choice([4, 8, 16])
        )
        cases.append(replace(case, window=rng.choice([0, 0, rng.randint(1, 70)]), seed=seed))
    smallest(sorted(cases, key=lambda case: sum(case.seq_lens)), lambda case: compare(learner, case))


@check("cpp-paged-decode")
def any_head_size(learner: Learner) -> None:
    """head_dim that is no multiple of a vector, from 1 to 256."""
    smallest([1, 3, 20, 100, 256], lambda dim: compare(learner, Case((9, 21), head_dim=dim, seed=dim)))


@check("cuda-paged-decode")
def threads_run_in_any_order(learner: Learner) -> None:
    """Running the threads of a block from the last to the first changes nothing."""
    smallest([3, 9, 40], lambda length: compare(learner, Case((length, 2), seed=length), backwards=True))


LONG = Case((208,), 1, 1, 64, 16)
check_accesses(
    LAB,
    lambda learner, dim: compare(learner, Case((5, 8), head_dim=dim, seed=dim)),
    cpp=[1, 3, 20, 32],
    cuda=[32, 96],
    triton=[4, 32],
    launches={"a row of 208 tokens, 1 head of 64": lambda learner: compare(learner, LONG)},
)

"""Checks of the labs cpp-, cuda- and triton-split-kv: states of splits and the merged output, against float64."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from random import Random

import numpy as np
from numpy.typing import NDArray

from lessons.course.checking import Failed, Learner, check, smallest
from lessons.course.native import Grid, Out, about, near, run, run_triton
from lessons.labs.kernel_checks import check_accesses
from lessons.labs.paged_decode import checks as paged_decode
from lessons.labs.paged_decode.checks import Data, expected, make

LAB = "split-kv"
DECODE, MERGE = "decode_splits", "merge_splits"
THREADS = 128
WITHIN = 2e-5
Array = NDArray[np.float32]
State = tuple[Array, Array, Array]
"""peak, mass, acc."""


@dataclass(frozen=True)
class Case(paged_decode.Case):
    split_size: int = 8
    more_splits: int = 0
    """Beyond what the longest row needs."""

    def __str__(self) -> str:
        return f"{super().__str__()}, splits of {self.split_size}"

    @property
    def splits(self) -> int:
        return -(-max(self.seq_lens) // self.split_size) + self.more_splits

    def seen(self, row: int, split: int) -> range:
        """Return the tokens of a split that the row sees."""
        end = self.seq_lens[row]
        begin = max(0, end - self.window) if self.window else 0
        return range(max(begin, split * self.split_size), min(end, (split + 1) * self.split_size))


def decode_arguments(case: Case, data: Data, state: Iterable[Out | Array]) -> list[object]:
    """Return the arguments of the C++ function decode_splits."""
    rows, heads, dim = data.query.shape
    sizes = [rows, heads, case.kv_heads, dim, case.block_size, data.table.shape[1], case.window]
    tensors = [data.query, data.kv, data.table, data.seq_lens, *state]
    return [*tensors, *sizes, case.splits, case.split_size, case.scale]


def empty_state(case: Case) -> State:
    shape = len(case.seq_lens), case.heads, case.splits
    peak, mass = (np.full(shape, np.nan, np.float32) for _ in range(2))
    return peak, mass, np.full((*shape, case.head_dim), np.nan, np.float32)


def decode(learner: Learner, case: Case, data: Data, backwards: bool = False) -> State:
    if learner.language == "triton":
        tensors = data.query, data.kv, data.table, data.seq_lens
        sizes = case.window, case.splits, case.split_size, case.scale
        peak, mass, acc = run_triton(learner, DECODE, *tensors, *sizes)
        return peak, mass, acc
    args = decode_arguments(case, data, map(Out, empty_state(case)))
    grid = Grid((case.heads, len(case.seq_lens), case.splits), THREADS)
    if learner.language == "cuda":
        del args[7]  # rows: the grid has them
    peak, mass, acc = run(learner, DECODE, *args, grid=grid, backwards=backwards)
    return peak, mass, acc


def merge(learner: Learner, state: State, backwards: bool = False) -> Array:
    rows, heads, splits, dim = state[2].shape
    if learner.language == "triton":
        return run_triton(learner, MERGE, *state)[0]
    args = [*state, Out(np.full((rows, heads, dim), np.nan, np.float32)), rows, heads, splits, dim]
    if learner.language == "cuda":
        del args[4]
    return run(learner, MERGE, *args, grid=Grid((heads, rows), THREADS), backwards=backwards)[0]


def compare_states(learner: Learner, case: Case, backwards: bool = False) -> None:
    """Check peak, mass and acc of each split."""
    data = make(case)
    with about(str(case)):
        found = decode(learner, case, data, backwards)
    expect_shapes(case, found)
    peak, mass, acc = found
    right, sizes = state_of(case, data)
    empty = right[1] == 0
    if wrong := [tuple(map(int, at)) for at in np.argwhere(empty & ((peak != -np.inf) | (mass != 0)))]:
        at = wrong[0]
        why = f"split {list(at)} has no token; its peak is {peak[at]:.6g} and its mass {mass[at]:.6g}"
        raise Failed(f"{why}; expected -inf and 0", example=str(case))
    found = np.where(empty, 0, peak), mass, np.where(empty[..., None], 0, acc)
    for name, mine, wanted, size in zip(("peak", "mass", "acc"), found, right, sizes, strict=True):
        near(name, mine, wanted, size, str(case), WITHIN)


def state_of(case: Case, data: Data) -> tuple[list[NDArray[np.float64]], list[NDArray[np.float64]]]:
    """Return peak, mass and acc, zeros without a token, and the sizes that errors are measured by."""
    peak, mass, acc = right = [np.zeros(each.shape) for each in empty_state(case)]
    scale = np.ones(peak.shape)
    for row, (keys, values) in enumerate(data.dense):
        for head in range(case.heads):
            own = head // (case.heads // case.kv_heads)
            scores = case.scale * (keys[:, own].astype(np.float64) @ data.query[row, head].astype(np.float64))
            scale[row, head] = np.abs(scores).max()
            for split in range(case.splits):
                if seen := case.seen(row, split):
                    at = row, head, split
                    peak[at] = scores[seen.start : seen.stop].max()
                    weights = np.exp(scores[seen.start : seen.stop] - peak[at])
                    mass[at], acc[at] = weights.sum(), weights @ values[seen.start : seen.stop, own]
    largest = max(float(np.abs(values).max()) for _, values in data.dense)
    return right, [scale, mass, mass[..., None] * largest]


def expect_shapes(case: Case, found: State) -> None:
    for name, each, wanted in zip(("peak", "mass", "acc"), found, empty_state(case), strict=True):
        if each.shape != wanted.shape:
            why = f"{name} has the shape {each.shape}; expected {wanted.shape}"
            raise Failed(why, example=str(case))


def compare(learner: Learner, case: Case, *, backwards: bool = False) -> None:
    """Check the output of both functions, one after the other."""
    data = make(case)
    with about(str(case)):
        state = decode(learner, case, data, backwards)
        expect_shapes(case, state)
        for row in range(len(case.seq_lens)):
            for split in range(case.splits):
                if not case.seen(row, split):
                    state[2][row, :, split] = np.nan
        found = merge(learner, state, backwards)
    largest = max(float(np.abs(values).max()) for _, values in data.dense)
    near("out", found, expected(case, data), largest, str(case), WITHIN)


def compare_merge(learner: Learner, splits: int, empty: Iterable[int] = (), spread: float = 3.0) -> None:
    """Check merge_splits on states that nothing has computed."""
    rng = np.random.default_rng(splits)
    peak = spread * rng.standard_normal((2, 3, splits)).astype(np.float32)
    mass = rng.uniform(1, 40, peak.shape).astype(np.float32)
    acc = mass[..., None] * rng.uniform(-1, 1, (*peak.shape, 32)).astype(np.float32)
    for split in empty:
        peak[:, :, split], mass[:, :, split], acc[:, :, split] = -np.inf, 0, np.nan
    example = f"{splits} splits, empty ones: {list(empty) or 'none'}"
    with about(example):
        found = merge(learner, (peak, mass, acc))
    weights = np.exp(peak.astype(np.float64) - peak.max(-1, keepdims=True))[..., None]
    right = (weights * np.nan_to_num(acc)).sum(2) / (weights * mass[..., None]).sum(2)
    near("out", found, right, 1.0, example, WITHIN)


@check(LAB)
def a_single_split(learner: Learner) -> None:
    """A split that holds the whole row: largest score, sum of exponentials, weighted values."""
    smallest([1, 2, 5, 8], lambda length: compare_states(learner, Case((length,), seed=length)))


@check(LAB)
def each_split_has_its_own_state(learner: Learner) -> None:
    """peak, mass and acc count the tokens of their split only; the last split may be cut."""
    smallest([9, 16, 21, 30], lambda length: compare_states(learner, Case((length,), seed=length)))


@check(LAB)
def splits_without_tokens(learner: Learner) -> None:
    """Behind the end of a shorter row peak is -infinity and mass is 0."""
    compare_states(learner, Case((3, 21, 8), more_splits=1, seed=2))


@check(LAB)
def merge_weighs_by_the_largest_peak(learner: Learner) -> None:
    """merge_splits: each split weighs as much as its exponentials, measured against the largest peak."""
    smallest([1, 2, 3, 7, 33], lambda splits: compare_merge(learner, splits))


@check(LAB)
def merge_reads_no_empty_split(learner: Learner) -> None:
    """Splits without tokens, wherever they stand: their acc is not read."""
    cases: list[tuple[int, list[int]]] = [(2, [1]), (2, [0]), (4, [0, 1, 3]), (9, [0, 4, 8])]
    smallest(cases, lambda each: compare_merge(learner, *each))


@check(LAB)
def merge_of_distant_peaks(learner: Learner) -> None:
    """Peaks that differ by thousands overflow nothing."""
    smallest([2, 5, 12], lambda splits: compare_merge(learner, splits, spread=3000.0))


@check(LAB)
def both_give_attention(learner: Learner) -> None:
    """Splits of any size give the softmax over all tokens."""
    cases = [Case((25,), split_size=size, seed=size) for size in (24, 12, 8, 4)]
    smallest(cases, lambda case: compare(learner, case))


@check(LAB)
def heads_of_a_group_share_keys(learner: Learner) -> None:
    """Query head h reads kv head h / (heads / kv_heads)."""
    pairs = [(4, 2), (3, 1), (6, 2), (8, 1)]
    smallest(pairs, lambda pair: compare_states(learner, Case((11, 5), *pair, seed=sum(pair))))


@check(LAB)
def a_window_begins_within_a_split(learner: Learner) -> None:
    """Only the last `window` tokens are seen: the first splits are empty, one is cut at its start."""
    windows = [1, 2, 5, 8, 9, 17, 100]
    smallest(windows, lambda window: compare_states(learner, Case((27, 6), window=window, seed=window)))
    compare(learner, Case((27, 6), window=11))


@check(LAB)
def large_scores(learner: Learner) -> None:
    """Scores of thousands overflow nothing, in whichever split the largest stands."""
    smallest(range(6), lambda seed: compare(learner, Case((24,), size=1000.0, seed=seed)))


@check(LAB)
def the_batch_changes_no_bit(learner: Learner) -> None:
    """A row's states have the same bits alone, in a batch, and with more splits than it needs."""
    case = Case((19, 45, 8), 2, 1, seed=4)
    data = make(case)
    with about(str(case)):
        together = decode(learner, case, data)
        expect_shapes(case, together)
        for row, length in enumerate(case.seq_lens):
            rows = slice(row, row + 1)
            alone = replace(case, seq_lens=(length,))
            only = Data(
                np.ascontiguousarray(data.query[rows]),
                data.kv,
                np.ascontiguousarray(data.table[rows]),
                np.ascontiguousarray(data.seq_lens[rows]),
                data.dense[rows],
            )
            state = decode(learner, alone, only)
            expect_shapes(alone, state)
            for name, mine, batched in zip(("peak", "mass", "acc"), state, together, strict=True):
                if not np.array_equal(mine[0], batched[row, :, : alone.splits]):
                    raise Failed(f"{name} of row {row} differs from the same row alone", example=str(case))


@check(LAB)
def other_sizes(learner: Learner) -> None:
    """Block sizes of 4 to 32, heads of up to 128 numbers."""
    cases = [
        Case((37, 18), block_size=size, head_dim=dim, split_size=max(16, size), seed=size + dim)
        for size, dim in ((4, 64), (8, 128), (16, 32), (32, 64))
    ]
    smallest(cases, lambda case: compare_states(learner, case))


@check(LAB)
def random_batches(learner: Learner) -> None:
    """12 random batches with groups, windows and partial blocks."""
    rng = Random(7)
    cases = []
    for seed in range(12):
        kv_heads, block = rng.choice([1, 2]), rng.choice([4, 8, 16])
        lengths = tuple(rng.randint(1, 48) for _ in range(rng.randint(1, 2)))
        heads = kv_heads * rng.choice([1, 2, 3])
        case = Case(lengths, heads, kv_heads, 32, block, split_size=block * rng.choice([1, 2, 4]))
        cases.append(replace(case, window=rng.choice([0, 0, rng.randint(1, 50)]), seed=seed))
    smallest(sorted(cases, key=lambda case: sum(case.seq_lens)), lambda case: compare(learner, case))


@check("cpp-split-kv")
def any_head_size(learner: Learner) -> None:
    """head_dim that is no multiple of a vector, from 1 to 256."""
    sizes = [1, 3, 20, 100, 256]
    smallest(sizes, lambda dim: compare(learner, Case((9, 21), head_dim=dim, seed=dim)))


@check("cpp-split-kv")
def long_splits(learner: Learner) -> None:
    """Splits of several hundred tokens."""
    cases = [Case((300,), 2, 1, split_size=128), Case((700, 90), 4, 1, split_size=256)]
    smallest(cases, lambda case: compare_states(learner, case))


@check("cuda-split-kv")
def threads_run_in_any_order(learner: Learner) -> None:
    """The result stays the same if the threads of a block run from the last to the first."""
    lengths = [3, 9, 40]
    smallest(lengths, lambda length: compare(learner, Case((length, 2), seed=length), backwards=True))


LONG = Case((208,), 1, 1, 64, 16, split_size=208)
MANY = Case((208,), 1, 1, 128, 16, split_size=16)


def at_the_ends_of_blocks(learner: Learner, dim: int) -> None:
    lengths = (21, 24) if learner.language == "triton" else (4, 17)
    compare(learner, Case(lengths, head_dim=dim, seed=dim))


check_accesses(
    LAB,
    at_the_ends_of_blocks,
    cpp=[1, 3, 20, 32],
    cuda=[32, 96],
    triton=[4, 32],
    launches={
        "decode_splits, a row of 208 tokens, 1 split, 1 head of 64": lambda learner: compare_states(
            learner, LONG
        ),
        f"merge_splits, {MANY}": lambda learner: compare(learner, MANY),
    },
)

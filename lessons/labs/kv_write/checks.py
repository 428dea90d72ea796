"""Checks of the labs cpp-, cuda- and triton-kv-write: the whole cache afterwards, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from numpy.typing import NDArray

from lessons.course.checking import Failed, Learner, check, smallest
from lessons.course.native import Grid, Out, about, run, run_triton
from lessons.labs.kernel_checks import check_accesses

LAB = "kv-write"
FUNCTION = "reshape_and_cache"
THREADS = 128
PADDING = -1
Array = NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    slots: tuple[int, ...]
    kv_heads: int = 2
    head_dim: int = 8
    block_size: int = 4
    blocks: int = 6
    gap: int = 0
    """Numbers between the tokens of key, as in a fused qkv tensor."""

    def __str__(self) -> str:
        return (
            f"slots {list(self.slots)}, block size {self.block_size}, {self.kv_heads} kv heads of {self.head_dim}"
            + (f", {self.gap} numbers between tokens" if self.gap else "")
        )


def arrays(case: Case) -> tuple[Array, Array, Array, NDArray[np.int64]]:
    """Return key and value [tokens, width + gap], the cache, and slots."""
    rng = np.random.default_rng(sum(case.slots) + case.head_dim)
    width = case.kv_heads * case.head_dim + case.gap
    key, value = rng.standard_normal((2, len(case.slots), width)).astype(np.float32)
    kv = rng.standard_normal((case.blocks, 2, case.kv_heads, case.block_size, case.head_dim)).astype(
        np.float32
    )
    return key, value, kv, np.array(case.slots, np.int64)


def arguments(
    case: Case, key: Array, value: Array, kv: Out | Array, slots: NDArray[np.int64]
) -> list[object]:
    """Return the arguments of the C++ function."""
    return [key, value, kv, slots, len(slots), key.shape[1], case.kv_heads, case.head_dim, case.block_size]


def compare(learner: Learner, case: Case) -> None:
    key, value, kv, slots = arrays(case)
    used = case.kv_heads * case.head_dim
    with about(str(case)):
        if learner.language == "triton":
            heads = len(slots), case.kv_heads, case.head_dim
            views = [torch.from_numpy(each)[:, :used].unflatten(1, heads[1:]) for each in (key, value)]
            [found] = run_triton(learner, FUNCTION, *views, Out(kv.copy()), slots)
        else:
            args = arguments(case, key, value, Out(kv.copy()), slots)
            if learner.language == "cuda":
                del args[4]  # tokens: the grid has them
            [found] = run(learner, FUNCTION, *args, grid=Grid((len(slots),), THREADS))
    right = kv.copy()
    for token, slot in enumerate(case.slots):
        if slot >= 0:
            for part, source in enumerate((key, value)):
                vectors = source[token, :used].reshape(case.kv_heads, case.head_dim)
                right[slot // case.block_size, part, :, slot % case.block_size] = vectors
    if not np.array_equal(found, right):
        at = tuple(int(i) for i in np.argwhere(found != right)[0])
        what = "must stay as it was" if right[at] == kv[at] else f"must be {right[at]:.5g}"
        raise Failed(f"kv{list(at)} is {found[at]:.5g}; it {what}", example=str(case))


@check(LAB)
def one_token(learner: Learner) -> None:
    """One token in the first slot of a block: keys at 0, values at 1, each head in its own page."""
    compare(learner, Case((4,)))


@check(LAB)
def the_offset_within_the_block(learner: Learner) -> None:
    """Slots within a block lie head_dim numbers apart."""
    smallest(range(8, 12), lambda slot: compare(learner, Case((slot,))))


@check(LAB)
def tokens_in_any_order(learner: Learner) -> None:
    """A prompt of several blocks that are not neighbours, and decoding rows between them."""
    compare(learner, Case((20, 21, 22, 23, 8, 9, 13, 6)))


@check(LAB)
def padding_writes_nothing(learner: Learner) -> None:
    """A slot of -1 changes no number, wherever it stands."""
    smallest([(-1,), (5, -1), (-1, 5, -1, 12)], lambda slots: compare(learner, Case(slots)))


@check(LAB)
def tokens_lie_apart(learner: Learner) -> None:
    """Keys are a view of a fused qkv tensor: stride numbers from token to token."""
    compare(learner, Case((4, 9, 2), gap=24))


@check(LAB)
def heads_of_many_sizes(learner: Learner) -> None:
    """1 to 8 heads of 4 to 128 numbers: fewer and more than a block of threads moves at once."""
    sizes = [(1, 4), (1, 64), (2, 128), (3, 20), (8, 128)]
    smallest(sizes, lambda size: compare(learner, Case((7, 18, 1), *size)))


@check(LAB)
def other_block_sizes(learner: Learner) -> None:
    """Blocks of 1, 2, 16 and 32 tokens."""
    sizes = [1, 2, 16, 32]
    smallest(sizes, lambda size: compare(learner, Case((3, size, 2 * size + size // 2), block_size=size)))


@check(LAB)
def random_steps(learner: Learner) -> None:
    """20 random steps."""
    rng = Random(5)
    cases = []
    for _ in range(20):
        size, blocks = rng.choice([2, 4, 8]), 8
        slots = rng.sample(range(size, size * blocks), rng.randint(1, 14))
        slots = [PADDING if rng.random() < 0.2 else slot for slot in slots]
        heads, dim = rng.choice([1, 2, 4]), rng.choice([4, 8, 24])
        cases.append(Case(tuple(slots), heads, dim, size, blocks, gap=rng.choice([0, 8])))
    smallest(sorted(cases, key=lambda case: len(case.slots)), lambda case: compare(learner, case))


@check("cpp-kv-write")
@check("triton-kv-write")
def any_head_size(learner: Learner) -> None:
    """head_dim that is no multiple of a vector."""
    smallest([1, 3, 13, 100], lambda dim: compare(learner, Case((7, 18), head_dim=dim)))


check_accesses(
    LAB,
    lambda learner, dim: compare(learner, Case((3, 6, -1, 21), head_dim=dim, block_size=4)),
    cpp=[1, 3, 13, 100],
    cuda=[4, 20, 128],
    triton=[1, 3, 13, 100],
    launches={"1 token, 8 kv heads of 128": lambda learner: compare(learner, Case((7,), 8, 128))},
)

"""Checks of the labs cpp-, cuda- and triton-rope: against a rotation in float64; what is not turned, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from lessons.course.checking import Failed, Learner, check, smallest
from lessons.course.native import Grid, Out, about, near, run, run_triton
from lessons.labs.kernel_checks import check_accesses

LAB = "rope"
FUNCTION = "rotary_embedding"
THREADS = 128
BASE = 10_000.0
MAX_POSITION = 512
Array = NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    positions: tuple[int, ...]
    heads: int = 1
    kv_heads: int = 1
    head_dim: int = 8
    rotary_dim: int = 8

    def __str__(self) -> str:
        return (
            f"positions {list(self.positions)}, {self.heads} heads, {self.kv_heads} kv heads of "
            f"{self.head_dim}, rotary_dim {self.rotary_dim}"
        )


def arrays(case: Case) -> tuple[Array, NDArray[np.int64], Array]:
    """Return qkv, positions, and the table of cos and sin."""
    rng = np.random.default_rng(sum(case.positions) + case.head_dim)
    shape = len(case.positions), case.heads + 2 * case.kv_heads, case.head_dim
    qkv = rng.standard_normal(shape).astype(np.float32)
    speeds = BASE ** (-np.arange(0, case.rotary_dim, 2) / case.rotary_dim)
    angles = np.arange(MAX_POSITION)[:, None] * speeds
    table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    return qkv, np.array(case.positions, np.int64), table


def arguments(case: Case, qkv: Out | Array, positions: NDArray[np.int64], table: Array) -> list[object]:
    """Return the arguments of the C++ function."""
    sizes = [len(positions), case.heads, case.kv_heads, case.head_dim, case.rotary_dim]
    return [qkv, positions, table, *sizes]


def compare(learner: Learner, case: Case, *, backwards: bool = False) -> None:
    qkv, positions, table = arrays(case)
    with about(str(case)):
        if learner.language == "triton":
            out = Out(qkv.copy())
            [found] = run_triton(learner, FUNCTION, out, positions, table, case.heads, case.kv_heads)
        else:
            args = arguments(case, Out(qkv.copy()), positions, table)
            if learner.language == "cuda":
                del args[3]  # tokens: the grid has them
            grid = Grid((len(positions),), THREADS)
            [found] = run(learner, FUNCTION, *args, grid=grid, backwards=backwards)
    half, turned = case.rotary_dim // 2, case.heads + case.kv_heads
    stays = np.ones(qkv.shape, bool)
    stays[:, :turned, : 2 * half] = False
    if wrong := [tuple(map(int, at)) for at in np.argwhere(stays & (found != qkv))]:
        at = wrong[0]
        raise Failed(f"qkv{list(at)} is {found[at]:.6g}; it must stay {qkv[at]:.6g}", example=str(case))
    row = table[positions].astype(np.float64)[:, None]
    cos, sin = row[..., :half], row[..., half:]
    first, second = (qkv[:, :turned, part * half : (part + 1) * half].astype(np.float64) for part in range(2))
    wanted = np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=2)
    length = np.tile(np.hypot(first, second), 2)
    near("qkv", found[:, :turned, : 2 * half], wanted, length, str(case), within=1e-6)


@check(LAB)
def a_pair_turns_by_its_angle(learner: Learner) -> None:
    """One token: dimension i turns with i + rotary_dim / 2, from x towards y."""
    smallest([1, 2, 3], lambda position: compare(learner, Case((position,))))


@check(LAB)
def the_first_position_changes_nothing(learner: Learner) -> None:
    """Position 0 is the angle 0."""
    compare(learner, Case((0,)))


@check(LAB)
def values_stay(learner: Learner) -> None:
    """Values keep their bits; only queries and keys are turned."""
    smallest([(1, 1), (2, 2), (3, 2)], lambda heads: compare(learner, Case((5,), *heads)))


@check(LAB)
def keys_turn_like_queries(learner: Learner) -> None:
    """Each query head and each kv head is turned once, also with fewer kv heads."""
    smallest([(2, 1), (4, 2), (8, 1), (7, 1)], lambda heads: compare(learner, Case((9, 3), *heads)))


@check(LAB)
def positions_follow_the_list(learner: Learner) -> None:
    """A chunk of one request, decoding rows of others, the same position twice."""
    compare(learner, Case((30, 31, 32, 33, 7, 500, 7, 0), 2, 1))


@check(LAB)
def dimensions_behind_stay(learner: Learner) -> None:
    """The rest of a head passes through if rotary_dim < head_dim; pairs are rotary_dim / 2 apart."""
    sizes = [(16, 8), (12, 8), (64, 16), (128, 64)]
    smallest(sizes, lambda size: compare(learner, Case((4, 11), 2, 1, *size)))


@check(LAB)
def many_heads(learner: Learner) -> None:
    """More pairs than a block moves at once: up to 40 heads of 128."""
    sizes = [(6, 2, 64), (16, 4, 128), (32, 8, 128)]
    smallest(sizes, lambda size: compare(learner, Case((19, 2), *size, size[2])))


@check(LAB)
def random_steps(learner: Learner) -> None:
    """20 random steps with groups of heads and partial rotations."""
    rng = Random(3)
    cases = []
    for _ in range(20):
        kv_heads, half = rng.choice([1, 2, 3]), rng.choice([4, 8, 12, 32])
        positions = tuple(rng.randrange(MAX_POSITION) for _ in range(rng.randint(1, 9)))
        head_dim = 2 * half + rng.choice([0, 0, 4, 32])
        cases.append(Case(positions, kv_heads * rng.choice([1, 2, 4]), kv_heads, head_dim, 2 * half))
    smallest(sorted(cases, key=lambda case: len(case.positions)), lambda case: compare(learner, case))


@check("cpp-rope")
def any_head_size(learner: Learner) -> None:
    """rotary_dim / 2 that is no multiple of a vector, head_dim that is odd."""
    sizes = [(2, 2), (3, 2), (7, 6), (20, 20), (101, 66)]
    smallest(sizes, lambda size: compare(learner, Case((7, 18), 2, 1, *size)))


@check("triton-rope")
def sizes_that_are_no_power_of_two(learner: Learner) -> None:
    """Lanes beyond the heads or the pairs of a token are masked."""
    sizes = [(6, 6), (9, 6), (24, 20)]
    smallest(sizes, lambda size: compare(learner, Case((7, 18), 3, 2, *size)))


@check("cuda-rope")
def threads_run_in_any_order(learner: Learner) -> None:
    """The result stays the same if the threads of a block run from the last to the first."""
    sizes = [8, 64, 128]
    smallest(sizes, lambda size: compare(learner, Case((6, 45), 6, 2, size, size), backwards=True))


LARGE = Case((19,), 32, 8, 128, 128)
check_accesses(
    LAB,
    lambda learner, size: compare(learner, Case((7, MAX_POSITION - 1), 2, 1, *size)),
    cpp=[(2, 2), (7, 6), (101, 66)],
    cuda=[(8, 8), (12, 8), (64, 16)],
    triton=[(2, 2), (7, 6), (101, 66)],
    launches={"1 token, 32 heads, 8 kv heads of 128": lambda learner: compare(learner, LARGE)},
)

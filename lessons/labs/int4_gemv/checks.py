"""Checks of the labs cpp-, cuda- and triton-int4-gemv: against dequantised weights in float64."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from lessons.course.checking import Learner, check, smallest
from lessons.course.native import Grid, Out, about, near, run, run_triton
from lessons.labs.kernel_checks import check_accesses

LAB = "int4-gemv"
FUNCTION = "int4_gemv"
WARPS = 4
THREADS = 32 * WARPS
Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Data = tuple[Floats, Bytes, Floats, Bytes]
"""x, qweight, scale, zero."""


@dataclass(frozen=True)
class Case:
    rows: int
    columns: int
    group_size: int
    size: float = 1.0
    """Scale of x."""
    seed: int = 0

    def __str__(self) -> str:
        rows = f"{self.rows} rows" if self.rows > 1 else "1 row"
        return f"{rows} of {self.columns} columns, groups of {self.group_size}"


def make(case: Case) -> Data:
    rng = np.random.default_rng(case.seed)
    groups = case.columns // case.group_size
    x = case.size * rng.standard_normal(case.columns)
    qweight = rng.integers(0, 256, (case.rows, case.columns // 2), np.uint8)
    scale = rng.uniform(0.01, 0.1, (case.rows, groups))
    zero = rng.integers(0, 16, (case.rows, groups), np.uint8)
    return x.astype(np.float32), qweight, scale.astype(np.float32), zero


def nibbles(qweight: Bytes) -> Bytes:
    """Return the columns in order: [rows, columns]."""
    return np.stack([qweight & 15, qweight >> 4], axis=-1).reshape(len(qweight), -1)


def arguments(case: Case, data: Data, out: Out | Floats) -> list[object]:
    """Return the arguments of the C++ and the CUDA function."""
    return [*data, out, case.rows, case.columns, case.group_size]


def compare(learner: Learner, case: Case, data: Data | None = None) -> None:
    x, qweight, scale, zero = data = data or make(case)
    with about(str(case)):
        if learner.language == "triton":
            [found] = run_triton(learner, FUNCTION, *data, case.group_size)
        else:
            args = arguments(case, data, Out(np.full(case.rows, np.nan, np.float32)))
            [found] = run(learner, FUNCTION, *args, grid=Grid((-(-case.rows // WARPS),), THREADS))
    wide, each = x.astype(np.float64), scale.repeat(case.group_size, axis=1).astype(np.float64)
    weights = (nibbles(qweight) - zero.repeat(case.group_size, axis=1).astype(np.float64)) * each
    near("out", found, weights @ wide, each @ np.abs(wide), str(case))


@check(LAB)
def one_group_by_the_definition(learner: Learner) -> None:
    """One row of one group: nibble less zero point, times the scale."""
    smallest([8, 16, 32], lambda columns: compare(learner, Case(1, columns, columns, seed=columns)))


@check(LAB)
def the_low_half_of_a_byte_comes_first(learner: Learner) -> None:
    """A single 1 in x picks a single column."""
    case = Case(3, 16, 16)
    _, qweight, scale, zero = make(case)
    smallest(
        range(16),
        lambda column: compare(learner, case, (np.eye(16, dtype=np.float32)[column], qweight, scale, zero)),
    )


@check(LAB)
def nibbles_have_no_sign(learner: Learner) -> None:
    """Nibbles from 8 to 15 are as large as they look; so are zero points."""
    case = Case(2, 32, 8)
    x, qweight, scale, zero = make(case)
    compare(learner, case, (x, qweight | np.uint8(0x88), scale, zero | np.uint8(8)))


@check(LAB)
def each_group_has_its_own_scale(learner: Learner) -> None:
    """Scales of neighbouring groups differ by a factor of 1000."""
    case = Case(3, 64, 16)
    x, qweight, scale, zero = make(case)
    scale = scale * np.float32(1000) ** (np.arange(4, dtype=np.float32) % 2)
    for group in range(4):
        only = np.where(np.arange(64) // 16 == group, x, 0).astype(np.float32)
        compare(learner, case, (only, qweight, scale, zero))


@check(LAB)
def each_group_has_its_own_zero_point(learner: Learner) -> None:
    """A group whose nibbles all are its zero point adds nothing."""
    case = Case(2, 64, 8)
    x, _, scale, zero = make(case)
    both = (zero | zero << np.uint8(4)).repeat(4, axis=1)
    compare(learner, case, (x, both, scale, zero))


@check(LAB)
def rows_of_any_number(learner: Learner) -> None:
    """1 to 40 rows, each with its own scales; some fill no block."""
    smallest([1, 2, 3, 4, 5, 8, 9, 17, 40], lambda rows: compare(learner, Case(rows, 64, 32, seed=rows)))


@check(LAB)
def groups_of_many_sizes(learner: Learner) -> None:
    """Groups of 8 to 128 columns, rows of 1 to 5 groups."""
    cases = [
        Case(5, size * groups, size, seed=groups) for size in (8, 16, 32, 64, 128) for groups in (1, 3, 5)
    ]
    smallest(cases, lambda case: compare(learner, case))


@check(LAB)
def long_rows(learner: Learner) -> None:
    """Rows of 4,096 columns and more, numbers of 1e4: the sum stays exact enough."""
    cases = [Case(6, 4_096, 128), Case(3, 11_008, 128, seed=1), Case(2, 4_096, 64, size=1e4)]
    smallest(cases, lambda case: compare(learner, case))


@check(LAB)
def random_matrices(learner: Learner) -> None:
    """20 random matrices."""
    rng = Random(11)
    cases = []
    for seed in range(20):
        size = rng.choice([8, 16, 32, 64, 128])
        cases.append(Case(rng.randint(1, 20), size * rng.randint(1, 8), size, seed=seed))
    smallest(sorted(cases, key=lambda case: case.rows * case.columns), lambda case: compare(learner, case))


@check("cpp-int4-gemv")
@check("cuda-int4-gemv")
def groups_that_are_no_power_of_two(learner: Learner) -> None:
    """Groups of any multiple of 8, that end within a vector."""
    sizes = [24, 40, 72, 136]
    smallest(sizes, lambda size: compare(learner, Case(5, 3 * size, size, seed=size)))


check_accesses(
    LAB,
    lambda learner, size: compare(learner, Case(*size)),
    cpp=[(1, 8, 8), (3, 24, 8), (5, 80, 40)],
    cuda=[(1, 8, 8), (3, 32, 8), (5, 64, 32)],
    triton=[(1, 8, 8), (3, 32, 8), (5, 64, 32)],
    launches={
        "4 rows of 4,096 columns, groups of 128": lambda learner: compare(learner, Case(4, 4_096, 128)),
    },
)

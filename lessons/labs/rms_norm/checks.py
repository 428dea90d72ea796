"""Checks of the labs cpp-, cuda- and triton-rms-norm: against the definition in float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lessons.course.checking import Learner, check, smallest
from lessons.course.native import Grid, Out, about, near, run, run_triton
from lessons.labs.kernel_checks import check_accesses

LAB = "rms-norm"
FUNCTION = "fused_add_rms_norm"
THREADS = 128
EPS = 1e-6
Array = NDArray[np.float32]


def arguments(rows: int, hidden: int, *, seed: int = 0, size: float = 1.0) -> list[Array]:
    """Return x, residual and weight."""
    rng = np.random.default_rng(seed)
    x, residual = (size * rng.standard_normal((rows, hidden)) for _ in range(2))
    weight = 1 + 0.2 * rng.standard_normal(hidden)
    return [each.astype(np.float32) for each in (x, residual, weight)]


def compare(learner: Learner, args: list[Array], eps: float = EPS, *, backwards: bool = False) -> None:
    x, residual, weight = args
    rows, hidden = x.shape
    example = f"{rows} rows of {hidden} numbers, eps {eps:g}"
    with about(example):
        out, total = outputs(learner, args, eps, backwards)
    wide = x.astype(np.float64) + residual
    right = wide / np.sqrt((wide**2).mean(1, keepdims=True) + eps) * weight
    for name, mine, wanted in (("total", total, wide), ("out", out, right)):
        near(name, mine, wanted, np.abs(wanted).max(1, keepdims=True), example)


def outputs(learner: Learner, args: list[Array], eps: float, backwards: bool) -> list[Array]:
    rows, hidden = args[0].shape
    if learner.language == "triton":
        return run_triton(learner, FUNCTION, *args, eps)
    outs = [Out(np.full_like(args[0], np.nan)) for _ in range(2)]
    if learner.language == "cpp":
        return run(learner, FUNCTION, *args, *outs, rows, hidden, eps)
    return run(learner, FUNCTION, *args, *outs, hidden, eps, grid=Grid((rows,), THREADS), backwards=backwards)


@check(LAB)
def a_row_by_the_definition(learner: Learner) -> None:
    """One row of 128 numbers: the sum in total, the scaled sum in out."""
    compare(learner, arguments(1, 128))


@check(LAB)
def each_row_has_its_own_scale(learner: Learner) -> None:
    """Rows of very different size do not share a mean."""
    x, residual, weight = arguments(5, 64, seed=1)
    for row in range(5):
        x[row] *= 10.0**row
        residual[row] *= 10.0**row
    compare(learner, [x, residual, weight])


@check(LAB)
def any_hidden_size(learner: Learner) -> None:
    """Sizes that are no multiple of a vector, a warp or a block."""
    smallest(
        [1, 2, 3, 7, 31, 33, 100, 127, 129, 255, 1000],
        lambda size: compare(learner, arguments(3, size, seed=size)),
    )


@check(LAB)
def eps_is_inside_the_root(learner: Learner) -> None:
    """eps is added to the mean before the root; a row of zeros gives zeros."""
    compare(learner, arguments(2, 64, seed=2, size=0.01), eps=1e-2)
    compare(learner, [np.zeros((2, 64), np.float32), np.zeros((2, 64), np.float32), np.ones(64, np.float32)])


@check(LAB)
def the_mean_is_over_the_row(learner: Learner) -> None:
    """The sum of squares is divided by hidden, not by a block's size."""
    compare(learner, arguments(2, 96, seed=3))
    compare(learner, arguments(2, 4096, seed=4))


@check(LAB)
def large_and_small_numbers(learner: Learner) -> None:
    """Numbers of 1e4 and of 1e-4 keep their precision."""
    smallest([1e4, 1e-4], lambda size: compare(learner, arguments(2, 1024, seed=5, size=size), eps=1e-12))


@check(LAB)
def random_shapes(learner: Learner) -> None:
    """24 random shapes of up to 40 rows."""
    rng = np.random.default_rng(6)
    shapes = sorted((int(rng.integers(1, 40)), int(rng.integers(1, 700))) for _ in range(24))
    smallest(shapes, lambda shape: compare(learner, arguments(*shape, seed=sum(shape))))


@check("cuda-rms-norm")
def threads_run_in_any_order(learner: Learner) -> None:
    """Running the threads of a block from the last to the first changes nothing."""
    smallest([40, 128, 300], lambda size: compare(learner, arguments(4, size, seed=size), backwards=True))


check_accesses(
    LAB,
    lambda learner, size: compare(learner, arguments(3, size, seed=size)),
    cpp=[1, 3, 7, 17, 100],
    cuda=[1, 3, 33, 100, 132],
    triton=[1, 3, 7, 17, 100],
    launches={"1 row of 4,096 numbers": lambda learner: compare(learner, arguments(1, 4_096))},
)

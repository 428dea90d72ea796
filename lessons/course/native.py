"""Call the functions of a learner's kernel in a guest, compare and measure them. Compiling: `native_guest.py`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lessons.course.checking import Failed, Learner
from prep_common.sandbox import Guest, GuestError

BACKWARDS, WATCHED, NO_RACES = 1, 2, 4
"""Options of a launch: kernels/cuda/shim/export.h."""
MOST_OF_FAIR_SHARE = 3.0
"""A thread may make so many times its fair share of its block's accesses to memory."""


@dataclass(frozen=True)
class Out:
    """An argument that the function writes; it begins with the values of `array`."""

    array: NDArray[Any]


@dataclass(frozen=True)
class Grid:
    """Launch configuration of a CUDA kernel."""

    blocks: tuple[int, ...]
    threads: int
    shared_bytes: int = 0

    def shape(self, options: int = 0) -> Any:
        grid = [*self.blocks, 1, 1][:3]
        return grid, [self.threads, 1, 1], self.shared_bytes, options


def run(
    learner: Learner, name: str, *args: Any, grid: Grid | None = None, backwards: bool = False
) -> list[NDArray[Any]]:
    """Call a function once; return the arrays of its `Out` arguments. Raises Failed if it leaves its arrays.

    grid: in the CUDA form, the launch. backwards: threads of a block run from the last to the first.
    """
    letters, values, outputs = flatten(args)
    options = learner.launch_options | (BACKWARDS if backwards else 0)
    shape = grid.shape(options) if grid and learner.language == "cuda" else None
    how = "run_within_walls" if learner.has_walls and sys.platform == "linux" else "run"
    found = learner.call(how, learner.get("FOLDER"), name, letters, values, outputs, shape)
    if isinstance(found, str):
        raise Failed(found)
    return list(found)


@contextmanager
def walls(learner: Learner) -> Iterator[None]:
    """Fail calls that read or write beside their arrays, use what a mask hides, or leave memory allocated."""
    learner.has_walls = True
    try:
        yield
    finally:
        learner.has_walls = False


@contextmanager
def watched(learner: Learner, options: int = WATCHED | NO_RACES) -> Iterator[None]:
    """Fail launches of a CUDA kernel in which two threads race, or set other options.

    In Triton, fail calls whose result no kernel has stored.
    """
    learner.launch_options = options
    try:
        yield
    finally:
        learner.launch_options = 0


def shared_work(learner: Learner, compare: Callable[[], object], example: str) -> None:
    """Run a launch and raise Failed if one of its threads made far more than its share of the accesses to memory."""
    with watched(learner, WATCHED):
        compare()
    share, thread = learner.call("largest_share", learner.get("FOLDER"))
    if not share <= MOST_OF_FAIR_SHARE:
        raise Failed(
            f"thread {thread} of a block makes {share:.0f} times its share of the block's accesses to memory; at most "
            f"{MOST_OF_FAIR_SHARE:g} times is allowed",
            example=example,
        )


def run_triton(learner: Learner, name: str, *args: Any) -> list[NDArray[Any]]:
    """Call a function of a Triton file with tensors; return its `Out` arguments, or without any what it returns."""
    outs: list[Any] = []
    values: list[Any] = []
    for arg in args:
        if isinstance(arg, Out):
            outs.append(learner.put(torch.from_numpy(arg.array)))
            values.append(outs[-1])
        else:
            values.append(torch.from_numpy(arg) if isinstance(arg, np.ndarray) else arg)
    if learner.has_walls or learner.launch_options:
        watch = "lessons.given.triton_interpreter:watched"
        found = learner.call(watch, learner.get(name), values, learner.has_walls)
        if isinstance(found, tuple) and found and found[0] == "wrong":
            raise Failed(str(found[1]))
    else:
        found = learner.call(name, *values)
    results = [each.content() for each in outs] or (
        list(found) if isinstance(found, tuple | list) else [found]
    )
    if not all(isinstance(each, torch.Tensor) for each in results):
        raise Failed(f"{name} returns tensors; it returned {type(found).__name__}")
    return [each.numpy() for each in results]


@contextmanager
def about(example: str) -> Iterator[None]:
    """Name the example in a refusal that has none."""
    try:
        yield
    except Failed as failed:
        raise Failed(failed.why, example=failed.example or example) from None
    except GuestError as error:
        if error.is_stub:
            raise
        raise Failed(str(error), example=example) from None


def near(
    name: str, mine: NDArray[Any], wanted: NDArray[Any], size: Any, example: str, within: float = 1e-5
) -> None:
    """Raise Failed at the largest error, if it is over `within` of `size`, an array that broadcasts."""
    if mine.shape != wanted.shape:
        raise Failed(f"{name} has the shape {mine.shape}; expected {wanted.shape}", example=example)
    error = np.abs(mine - wanted) / np.maximum(size, 1e-30)
    error = np.where(np.isnan(error), np.inf, error)
    at = tuple(int(index) for index in np.unravel_index(int(error.argmax()), error.shape))
    if error[at] > within:
        raise Failed(f"{name}{list(at)} is {mine[at]:.6g}; expected {wanted[at]:.6g}", example=example)


def flatten(args: Sequence[Any]) -> tuple[str, list[Any], list[int]]:
    """Return the letters of the arguments, their values, and the places of those that are written.

    Arrays are pointers, int is int32, float is float.
    """
    letters, values, outputs = "", [], []
    for place, arg in enumerate(args):
        if isinstance(arg, Out):
            outputs.append(place)
            arg = arg.array
        letters += "p" if isinstance(arg, np.ndarray) else "f" if isinstance(arg, float) else "i"
        values.append(arg)
    return letters, values, outputs


def seconds_per_call(guest: Guest, name: str, args: Sequence[Any], *, grid: Grid | None = None) -> float:
    """Return the median time of a call in the guest."""
    letters, values, _ = flatten(args)
    folder = guest.get("FOLDER")
    bench = guest.new("Bench", folder, name, letters, values, grid and grid.shape())
    return median_seconds(bench.repeat)


def median_seconds(repeat: Callable[[int], object]) -> float:
    """Return the median time of a call from five rounds of about 30 ms, after one call to warm up.

    repeat(n) makes n calls.
    """

    def timed(times: int) -> float:
        start = time.perf_counter()
        repeat(times)
        return (time.perf_counter() - start) / times

    times = max(1, int(0.03 / max(timed(1), 1e-6)))
    return median(timed(times) for _ in range(5))

"""Race of the lab cpp-int4-gemv, and the launch that the GPU report is about."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random

import numpy as np
import torch

from kernels import ops
from lessons.course.gpu_report import GpuWork
from lessons.labs.int4_gemv.checks import THREADS, WARPS, Case, arguments, make
from lessons.labs.kernel_race import Track, race_kernels
from lessons.labs.racing import Race

ROWS, COLUMNS, GROUP = 14_336, 4_096, 128
GROUPS = COLUMNS // GROUP


def least_bytes(rows: int, columns: int, group_size: int) -> int:
    """Return the bytes of x, out, the nibbles, and scale and zero of each group."""
    return 4 * columns + 4 * rows + rows * columns // 2 + 5 * rows * columns // group_size


GPU = GpuWork(
    f"{ROWS:,} rows of {COLUMNS:,} columns, groups of {GROUP}",
    num_bytes=least_bytes(ROWS, COLUMNS, GROUP),
    flops=2 * ROWS * COLUMNS,
    args=[
        ((COLUMNS,), "float32"),
        ((ROWS, COLUMNS // 2), "uint8"),
        ((ROWS, GROUPS), "float32"),
        ((ROWS, GROUPS), "uint8"),
        GROUP,
    ],
    blocks=-(-ROWS // WARPS),
    threads=THREADS,
)


def tracks(seed: int) -> Iterator[Track]:
    """Yield three fixed workloads, and one that the seed draws."""
    rng = Random(seed)
    for name, case in (
        ("qkv", Case(1_536, 1_024, 128)),
        ("gate and up", Case(5_632, 1_024, 64)),
        ("down", Case(1_024, 2_816, 32)),
        (f"seed {seed}", Case(rng.randint(64, 2_000), 128 * rng.randint(1, 20), rng.choice([32, 64, 128]))),
    ):
        data = make(case)
        x, qweight, scale, zero = (torch.from_numpy(each) for each in data)
        yield Track(
            f"{name}, {case}",
            arguments(case, data, np.empty(case.rows, np.float32)),
            partial(ops.int4_linear, x[None], qweight, scale, zero, case.group_size),
            least_bytes(case.rows, case.columns, case.group_size),
        )


def race(yours: str, ours: str, seed: int = 0) -> Race:
    return race_kernels("cpp-int4-gemv", "int4_gemv", yours, ours, tracks(seed))

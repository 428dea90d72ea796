"""Race of the lab cpp-rms-norm, and the launch that the GPU report is about."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from kernels import ops
from lessons.course.gpu_report import GpuWork
from lessons.labs.kernel_race import Track, race_kernels
from lessons.labs.racing import Race
from lessons.labs.rms_norm.checks import EPS, THREADS, arguments

ROWS = HIDDEN = 4096
GPU = GpuWork(
    f"{ROWS:,} rows of {HIDDEN:,} numbers, fp32",
    num_bytes=16 * ROWS * HIDDEN + 4 * HIDDEN,
    flops=5 * ROWS * HIDDEN,
    args=[((ROWS, HIDDEN), "float32"), ((ROWS, HIDDEN), "float32"), ((HIDDEN,), "float32"), EPS],
    blocks=ROWS,
    threads=THREADS,
)


def tracks(seed: int) -> Iterator[Track]:
    """Yield three fixed workloads, and one that the seed draws."""
    rng = np.random.default_rng(seed)
    drawn = int(rng.integers(1, 300)), int(rng.integers(30, 3000))
    for name, rows, hidden in (
        ("decode, 32 rows", 32, 512),
        ("prefill, 512 rows", 512, 512),
        ("wide, 64 rows", 64, 4096),
        (f"seed {seed}, {drawn[0]} rows", *drawn),
    ):
        x, residual, weight = arguments(rows, hidden)
        args = [x, residual, weight, np.empty_like(x), np.empty_like(x), rows, hidden, EPS]
        x_too, residual_too, weight_too = map(torch.from_numpy, (x, residual, weight))
        engine = partial(ops.fused_add_rms_norm, x_too, residual_too, weight_too, EPS)
        yield Track(f"{name} of {hidden}", args, engine, 16 * rows * hidden)


def race(yours: str, ours: str, seed: int = 0) -> Race:
    return race_kernels("cpp-rms-norm", "fused_add_rms_norm", yours, ours, tracks(seed))

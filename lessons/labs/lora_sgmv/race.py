"""Race of the lab cpp-lora-sgmv, and the two launches that the GPU report is about."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random

import numpy as np
import torch

from kernels import ops
from lessons.course.gpu_report import GpuWork
from lessons.labs.kernel_race import Track, race_kernels
from lessons.labs.lora_sgmv.checks import (
    EXPAND,
    NO_ADAPTER,
    SHRINK,
    THREADS,
    TILE,
    WARPS,
    Case,
    Data,
    arguments,
    make,
)
from lessons.labs.racing import Race

ROWS, ADAPTERS, RANK, SIZE = 64, 16, 16, 4096
_LISTS = [((ROWS,), "int32"), ((ADAPTERS + 1,), "int32"), ((ADAPTERS,), "int32")]
_MATRICES = ((ADAPTERS, RANK, SIZE), "float32")
_WIDE, _LOW = ((ROWS, SIZE), "float32"), ((ROWS, RANK), "float32")
_TILES = -(-ROWS // TILE)
_FACTS = f"{ROWS} rows, {ADAPTERS} adapters of rank {RANK}, {SIZE:,} x {SIZE:,}, fp32"
GPU = (
    GpuWork(
        _FACTS,
        num_bytes=4 * (ADAPTERS * RANK * SIZE + ROWS * SIZE + ROWS * RANK),
        flops=2 * ROWS * RANK * SIZE,
        args=[_WIDE, _MATRICES, *_LISTS, _LOW],
        blocks=ADAPTERS * _TILES * -(-RANK // WARPS),
        threads=THREADS,
        function=SHRINK,
    ),
    GpuWork(
        _FACTS,
        num_bytes=4 * (ADAPTERS * RANK * SIZE + 2 * ROWS * SIZE + ROWS * RANK),
        flops=2 * ROWS * RANK * SIZE,
        args=[_LOW, _MATRICES, *_LISTS, ((ADAPTERS,), "float32"), _WIDE],
        blocks=ADAPTERS * _TILES * -(-SIZE // (4 * THREADS)),
        threads=THREADS,
        function=EXPAND,
    ),
)


def tracks(seed: int) -> Iterator[Track]:
    """Yield three fixed workloads, and one that the seed draws: shrink, then expand."""
    rng = Random(seed)
    drawn = [rng.randint(NO_ADAPTER, 5) for _ in range(rng.randint(4, 90))]
    for name, adapters in (
        ("decode, 32 rows, 8 adapters", [row % 8 for row in range(32)]),
        ("decode, 24 rows, each its own", list(range(24))),
        ("prompts, 256 rows, 2 adapters", [row // 128 for row in range(256)]),
        (f"seed {seed}, {len(drawn)} rows", drawn),
    ):
        case = Case(tuple(adapters), (RANK,) * (max(adapters) + 1), RANK, 2048, 2048)
        data = make(case, stale=0.0)
        used, rows = int((np.diff(data.starts) > 0).sum()) * RANK, len(data.order)
        yield Track(
            name,
            arguments(case, data, SHRINK, data.low.copy()),
            partial(_engine, *_tensors(case, data)),
            4 * (used * (case.depth + case.columns) + rows * (case.depth + 2 * case.columns + 2 * RANK)),
            then=(EXPAND, arguments(case, data, EXPAND, data.y.copy())),
        )


def _tensors(case: Case, data: Data) -> list[torch.Tensor]:
    """Return the arguments of prep's kernels, in the layouts that they are fast with on a CPU.

    There neighbours in memory are neighbouring results: ranks in A, columns in B.
    """
    a = torch.from_numpy(data.a).transpose(1, 2).contiguous().transpose(1, 2)[None]
    b = torch.from_numpy(data.b).transpose(1, 2)
    of = torch.tensor(case.token_adapter, dtype=torch.int32)
    return [
        torch.from_numpy(data.x),
        a,
        of,
        b,
        torch.from_numpy(data.y.copy()),
        torch.from_numpy(data.scaling),
    ]


def _engine(
    x: torch.Tensor, a: torch.Tensor, of: torch.Tensor, b: torch.Tensor, *y_and_scaling: torch.Tensor
) -> None:
    ops.lora_expand(ops.lora_shrink(x, a, of), [b], of, *y_and_scaling)


def race(yours: str, ours: str, seed: int = 0) -> Race:
    return race_kernels("cpp-lora-sgmv", SHRINK, yours, ours, tracks(seed))

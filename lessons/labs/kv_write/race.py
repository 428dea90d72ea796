"""Race of the lab cpp-kv-write, and the launch that the GPU report is about."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random

import torch

from kernels import ops
from lessons.course.gpu_report import GpuWork
from lessons.labs.kernel_race import Track, race_kernels
from lessons.labs.kv_write.checks import THREADS, Case, arguments, arrays
from lessons.labs.racing import Race

TOKENS, KV_HEADS, DIM, BLOCK = 8192, 8, 128, 16
GPU = GpuWork(
    f"{TOKENS:,} tokens, {KV_HEADS} kv heads of {DIM}, fp32",
    num_bytes=16 * TOKENS * KV_HEADS * DIM,
    flops=0,
    args=[
        ((TOKENS, KV_HEADS, DIM), "float32"),
        ((TOKENS, KV_HEADS, DIM), "float32"),
        ((TOKENS // BLOCK, 2, KV_HEADS, BLOCK, DIM), "float32"),
        ((TOKENS,), "int64"),
    ],
    blocks=TOKENS,
    threads=THREADS,
)


def tracks(seed: int) -> Iterator[Track]:
    """Yield three fixed workloads, and one that the seed draws."""
    rng = Random(seed)
    for name, slots in (
        ("decode, 64 rows", rng.sample(range(16, 16 * 200), 64)),
        ("prompt of 512 tokens", list(range(1600, 2112))),
        ("chunk of 2,048 tokens", list(range(800, 2848))),
        (f"seed {seed}", rng.sample(range(16, 16 * 200), rng.randint(1, 600))),
    ):
        case = Case(tuple(slots), 2, 64, 16, 200)
        key, value, kv, where = arrays(case)
        shape = len(slots), case.kv_heads, case.head_dim
        tensors = [torch.from_numpy(each).view(shape) for each in (key, value)]
        tensors += [torch.from_numpy(kv), torch.from_numpy(where)]
        yield Track(
            name,
            arguments(case, key, value, kv, where),
            partial(ops.reshape_and_cache, *tensors),
            16 * len(slots) * case.kv_heads * case.head_dim,
        )


def race(yours: str, ours: str, seed: int = 0) -> Race:
    return race_kernels("cpp-kv-write", "reshape_and_cache", yours, ours, tracks(seed))

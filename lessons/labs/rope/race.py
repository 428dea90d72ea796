"""Race of the lab cpp-rope, and the launch that the GPU report is about."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random

import torch

from kernels import ops
from lessons.course.gpu_report import GpuWork
from lessons.labs.kernel_race import Track, race_kernels
from lessons.labs.racing import Race
from lessons.labs.rope.checks import MAX_POSITION, THREADS, Case, arguments, arrays

TOKENS, HEADS, KV_HEADS, DIM, POSITIONS = 8192, 32, 8, 128, 8192
TURNED = (HEADS + KV_HEADS) * DIM
GPU = GpuWork(
    f"{TOKENS:,} tokens, {HEADS} heads, {KV_HEADS} kv heads of {DIM}, fp32",
    num_bytes=8 * TOKENS * (TURNED + 1),
    flops=3 * TOKENS * TURNED,
    args=[
        ((TOKENS, HEADS + 2 * KV_HEADS, DIM), "float32"),
        ((TOKENS,), "int64"),
        ((POSITIONS, DIM), "float32"),
        HEADS,
        KV_HEADS,
    ],
    blocks=TOKENS,
    threads=THREADS,
)


def tracks(seed: int) -> Iterator[Track]:
    """Yield three fixed workloads, and one that the seed draws."""
    rng = Random(seed)
    shape = {"heads": 8, "kv_heads": 2, "head_dim": 64, "rotary_dim": 64}
    drawn = tuple(rng.randrange(MAX_POSITION) for _ in range(rng.randint(1, 300)))
    for name, positions in (
        ("decode, 64 rows", tuple(rng.randrange(MAX_POSITION) for _ in range(64))),
        ("prompt of 512 tokens", tuple(range(512))),
        ("chunks of 4 requests", tuple(range(100, 356)) * 4),
        (f"seed {seed}", drawn),
    ):
        case = Case(positions, **shape)
        qkv, where, table = arrays(case)
        x = torch.from_numpy(qkv)[:, : case.heads + case.kv_heads]
        cos, sin = torch.from_numpy(table)[torch.from_numpy(where)].chunk(2, dim=1)
        yield Track(
            f"{name}, {len(positions)} tokens",
            arguments(case, qkv, where, table),
            partial(ops.rotary_embedding, x, cos, sin),
            8 * x.numel(),
        )


def race(yours: str, ours: str, seed: int = 0) -> Race:
    return race_kernels("cpp-rope", "rotary_embedding", yours, ours, tracks(seed))

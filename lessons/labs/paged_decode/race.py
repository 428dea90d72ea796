"""Race of the lab cpp-paged-decode, and the launch that the GPU report is about."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import numpy as np
import torch

from kernels import ops
from kernels.attention_batch import AttentionBatch
from lessons.course.gpu_report import GpuWork
from lessons.labs.kernel_race import Track, race_kernels
from lessons.labs.paged_decode.checks import THREADS, Case, arguments, make
from lessons.labs.racing import Race

ROWS, TOKENS, HEADS, KV_HEADS, DIM, BLOCK = 64, 2048, 32, 8, 128, 16
BLOCKS = ROWS * TOKENS // BLOCK
GPU = GpuWork(
    f"{ROWS} rows of {TOKENS:,} tokens, {HEADS} heads, {KV_HEADS} kv heads of {DIM}, fp32",
    num_bytes=8 * ROWS * TOKENS * KV_HEADS * DIM,
    flops=4 * ROWS * TOKENS * HEADS * DIM,
    args=[
        ((ROWS, HEADS, DIM), "float32"),
        ((BLOCKS, 2, KV_HEADS, BLOCK, DIM), "float32"),
        ((ROWS, TOKENS // BLOCK), "int32"),
        ((ROWS,), "int32"),
        0,
        DIM**-0.5,
    ],
    blocks=ROWS * HEADS,
    threads=THREADS,
)


def tracks(seed: int) -> Iterator[Track]:
    """Yield three fixed workloads, and one that the seed draws."""
    rng = Random(seed)
    shape = {"heads": 8, "kv_heads": 2, "head_dim": 64, "block_size": 16}
    drawn = tuple(rng.randint(1, 900) for _ in range(rng.randint(2, 16)))
    for name, lengths in (
        ("chat, 16 rows", tuple(range(100, 740, 40))),
        ("one long document", (6000,)),
        ("agents, 8 rows", (1500,) * 8),
        (f"seed {seed}, {len(drawn)} rows", drawn),
    ):
        case = Case(lengths, **shape)
        data = make(case)
        query, kv, table, lens = (
            torch.from_numpy(each) for each in (data.query, data.kv, data.table, data.seq_lens)
        )
        batch = AttentionBatch(torch.arange(len(lengths) + 1, dtype=torch.int32), lens, table, 1)
        yield Track(
            name,
            arguments(case, data, np.empty_like(data.query)),
            lambda q=query, k=kv, b=batch, s=case.scale: ops.paged_attention(q, k, b, scale=s),
            8 * sum(lengths) * case.kv_heads * case.head_dim,
        )


def race(yours: str, ours: str, seed: int = 0) -> Race:
    return race_kernels("cpp-paged-decode", "paged_decode", yours, ours, tracks(seed))

"""Race of the lab cpp-paged-decode, and the launch that the GPU report is about."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from random import Random

import numpy as np
import torch

from kernels import ops
from kernels.attention_batch import AttentionBatch
from lessons.course.gpu_report import GpuWork
from lessons.labs.kernel_race import Track, race_kernels
from lessons.labs.paged_decode.checks import THREADS, Case, Data, arguments, make
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


SHAPE = {"heads": 8, "kv_heads": 2, "head_dim": 64, "block_size": 16}


def workloads(seed: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and lengths of the rows of three fixed workloads, and of one that the seed draws."""
    rng = Random(seed)
    drawn = tuple(rng.randint(1, 900) for _ in range(rng.randint(2, 16)))
    yield "chat, 16 rows", tuple(range(100, 740, 40))
    yield "one long document", (6000,)
    yield "agents, 8 rows", (1500,) * 8
    yield f"seed {seed}, {len(drawn)} rows", drawn


def engine_call(case: Case, data: Data) -> Callable[[], object]:
    """Return the same work with the engine's kernel."""
    tensors = (data.query, data.kv, data.table, data.seq_lens)
    query, kv, table, lens = (torch.from_numpy(each) for each in tensors)
    batch = AttentionBatch(torch.arange(len(lens) + 1, dtype=torch.int32), lens, table, 1)
    return partial(ops.paged_attention, query, kv, batch, scale=case.scale)


def least_bytes(case: Case) -> int:
    return 8 * sum(case.seq_lens) * case.kv_heads * case.head_dim


def tracks(seed: int) -> Iterator[Track]:
    for name, lengths in workloads(seed):
        case = Case(lengths, **SHAPE)
        data = make(case)
        args = arguments(case, data, np.empty_like(data.query))
        yield Track(name, args, engine_call(case, data), least_bytes(case))


def race(yours: str, ours: str, seed: int = 0) -> Race:
    return race_kernels("cpp-paged-decode", "paged_decode", yours, ours, tracks(seed))

"""Race of the lab cpp-top-k-top-p, and the launch that the GPU report is about."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random

import numpy as np
import torch

from kernels import ops
from kernels.reference.sampling import gumbel_noise
from lessons.course.gpu_report import GpuWork
from lessons.labs.kernel_race import Track, race_kernels
from lessons.labs.racing import Race
from lessons.labs.top_k_top_p.checks import FUNCTION, SHARED_BYTES, THREADS

ROWS, VOCAB = 256, 128_256
GPU = GpuWork(
    f"{ROWS} rows of {VOCAB:,} logits, each read once, fp32",
    num_bytes=4 * ROWS * VOCAB,
    flops=4 * ROWS * VOCAB,
    args=[
        ((ROWS, VOCAB), "float32"),
        ((ROWS, VOCAB), "float32"),
        ((ROWS,), "float32"),
        ((ROWS,), "int32"),
        ((ROWS,), "float32"),
    ],
    blocks=ROWS,
    threads=THREADS,
    shared_bytes=SHARED_BYTES,
)


def tracks(seed: int) -> Iterator[Track]:
    """Yield three fixed workloads, and one that the seed draws."""
    rng = Random(seed)
    drawn = rng.randint(1, 12), rng.randint(100, 40_000)
    for name, rows, vocab, temperature, top_k, top_p in (
        ("greedy", 16, 128_256, 0.0, 0, 1.0),
        ("top_k 50, top_p 0.9", 8, 128_256, 0.8, 50, 0.9),
        ("top_p 0.95", 8, 32_000, 1.0, 0, 0.95),
        (f"seed {seed}", *drawn, 1.0, rng.choice([0, 40]), rng.choice([0.5, 0.9])),
    ):
        draw = np.random.default_rng(rows + vocab)
        logits = 2.5 * draw.standard_normal((rows, vocab)).astype(np.float32)
        logits[:, :20] += np.linspace(
            12, 2, 20, dtype=np.float32
        )  # a few likely tokens, as a trained model has
        keys = torch.from_numpy(draw.integers(0, 2**31, (rows, 2), np.int64).astype(np.int32))
        columns = [
            torch.full((rows,), temperature),
            torch.full((rows,), top_k or vocab, dtype=torch.int32),
            torch.full((rows,), top_p),
        ]
        tensors = torch.from_numpy(logits), *columns, torch.zeros(rows), keys
        noise = gumbel_noise(keys, vocab).numpy()
        out = np.empty(rows, np.int32)
        yield Track(
            f"{name}, {rows} rows of {vocab:,}",
            [logits, noise, *(each.numpy() for each in columns), out, rows, vocab],
            partial(ops.sample, *tensors),
            4 * rows * vocab,
        )


def race(yours: str, ours: str, seed: int = 0) -> Race:
    return race_kernels("cpp-top-k-top-p", FUNCTION, yours, ours, tracks(seed))

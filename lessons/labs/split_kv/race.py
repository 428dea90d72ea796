"""Race of the lab cpp-split-kv, and the two launches that the GPU report is about."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lessons.course.gpu_report import GpuWork
from lessons.labs.kernel_race import Track, race_kernels
from lessons.labs.paged_decode.race import SHAPE, engine_call, least_bytes, workloads
from lessons.labs.racing import Race
from lessons.labs.split_kv.checks import DECODE, MERGE, THREADS, Case, decode_arguments, empty_state, make

TOKENS, HEADS, KV_HEADS, DIM, BLOCK, SPLIT = 131_072, 32, 8, 128, 16, 512
SPLITS = TOKENS // SPLIT
STATE = 4 * HEADS * SPLITS * (DIM + 2)
"""Bytes of peak, mass and acc."""
_ROW = f"1 row of {TOKENS:,} tokens, {HEADS} heads, {KV_HEADS} kv heads of {DIM}, {SPLITS} splits, fp32"
_NUMBERS = ((1, HEADS, SPLITS), "float32")
GPU = (
    GpuWork(
        _ROW,
        num_bytes=8 * TOKENS * KV_HEADS * DIM + STATE,
        flops=4 * TOKENS * HEADS * DIM,
        args=[
            ((1, HEADS, DIM), "float32"),
            ((TOKENS // BLOCK, 2, KV_HEADS, BLOCK, DIM), "float32"),
            ((1, TOKENS // BLOCK), "int32"),
            ((1,), "int32"),
            *(0, SPLITS, SPLIT, DIM**-0.5),
        ],
        blocks=HEADS * SPLITS,
        threads=THREADS,
        function=DECODE,
    ),
    GpuWork(
        f"{HEADS} heads of {DIM}, {SPLITS} splits, fp32",
        num_bytes=STATE + 4 * HEADS * DIM,
        flops=2 * HEADS * SPLITS * (DIM + 1),
        args=[_NUMBERS, _NUMBERS, ((1, HEADS, SPLITS, DIM), "float32")],
        blocks=HEADS,
        threads=THREADS,
        function=MERGE,
    ),
)


def tracks(seed: int) -> Iterator[Track]:
    """Yield the workloads of the lab paged-decode, in splits of 512 tokens: both functions, one after the other."""
    for name, lengths in workloads(seed):
        case = Case(lengths, **SHAPE, split_size=SPLIT)
        data, state = make(case), empty_state(case)
        merge_args = [*(np.ones_like(each) for each in state), np.empty_like(data.query)]
        sizes = [len(lengths), case.heads, case.splits, case.head_dim]
        yield Track(
            name,
            decode_arguments(case, data, state),
            engine_call(case, data),
            least_bytes(case),
            then=(MERGE, [*merge_args, *sizes]),
        )


def race(yours: str, ours: str, seed: int = 0) -> Race:
    return race_kernels("cpp-split-kv", DECODE, yours, ours, tracks(seed))

"""Copying blocks of the KV cache: a kernel within a device, one asynchronous copy per run of blocks between devices.

Between a GPU and the CPU the link decides (PCIe 5 x16: about 55 GB/s), and a copy engine fills it without an SM. What
costs is the number of copies, so neighbours go together: pairs (7, 3), (8, 4), (9, 5) are one copy of three blocks.
Pinned memory on the CPU side makes the copies asynchronous.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

import torch
from torch import Tensor

from kernels.cuda.launch import Kernel, launch

THREADS = 256
UNROLL = 4


def copy_blocks(source: Tensor, target: Tensor, block_pairs: Tensor) -> None:
    if source.device != target.device:
        for first_source, first_target, length in runs(block_pairs):
            blocks = source[first_source : first_source + length]
            target[first_target : first_target + length].copy_(blocks, non_blocking=True)
        return
    size = source.element_size()
    block_bytes = prod(source.shape[1:]) * size
    strides = source.stride(0) * size, target.stride(0) * size
    word = _word_bytes(block_bytes, *strides, source.data_ptr(), target.data_ptr())
    words = block_bytes // word
    pairs = block_pairs.to(source.device, non_blocking=True)
    defines = (("WORD_BYTES", str(word)), ("THREADS", str(THREADS)), ("UNROLL", str(UNROLL)))
    grid = (block_pairs.shape[0], -(-words // (THREADS * UNROLL)))
    kernel = Kernel("copy.cu", "copy_blocks", "ppplll", defines)
    launch(kernel, source, target, pairs, *strides, words, grid=grid, block=(THREADS,), device=source.device)


def runs(block_pairs: Tensor) -> Iterator[tuple[int, int, int]]:
    """Pairs int64 [n, 2] as (first source, first target, length): both sides go up by one within a run."""
    pairs = block_pairs.tolist()
    begin = 0
    for end in range(1, len(pairs) + 1):
        length = end - begin
        first_source, first_target = pairs[begin]
        if end == len(pairs) or pairs[end] != [first_source + length, first_target + length]:
            yield first_source, first_target, length
            begin = end


def _word_bytes(*multiples: int) -> int:
    """The widest access that divides all of these."""
    return next(width for width in (16, 8, 4, 2, 1) if not any(each % width for each in multiples))


def compile_cases() -> dict[str, Callable[[], object]]:
    cache = torch.empty(1024, 32, 2, 8, 16, 128, dtype=torch.bfloat16, device="meta")
    pairs = torch.empty(64, 2, dtype=torch.int64, device="meta")
    return {"bf16": lambda: copy_blocks(cache, cache, pairs)}

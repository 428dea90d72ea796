"""Copying blocks of the KV cache within a device: launches of copy.cu."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor

from kernels.cuda.launch import kernel, launch
from kernels.reference.copy import copy_between_devices

THREADS = 256
UNROLL = 4


def copy_blocks(source: Tensor, target: Tensor, block_pairs: Tensor) -> None:
    if source.device != target.device:
        copy_between_devices(source, target, block_pairs)
        return
    size = source.element_size()
    block_bytes = prod(source.shape[1:]) * size
    strides = source.stride(0) * size, target.stride(0) * size
    word = _word_bytes(block_bytes, *strides, source.data_ptr(), target.data_ptr())
    words = block_bytes // word
    pairs = block_pairs.to(source.device, non_blocking=True)
    grid = (block_pairs.shape[0], -(-words // (THREADS * UNROLL)))
    copy = kernel("copy.cu", "copy_blocks", "ppplll", WORD_BYTES=word, THREADS=THREADS, UNROLL=UNROLL)
    launch(copy, source, target, pairs, *strides, words, grid=grid, block=(THREADS,), device=source.device)


def _word_bytes(*multiples: int) -> int:
    """The widest access that divides all of these."""
    return next(width for width in (16, 8, 4, 2, 1) if not any(multiple % width for multiple in multiples))


def compile_cases(arch: int) -> dict[str, Callable[[], object]]:
    cache = torch.empty(1024, 32, 2, 8, 16, 128, dtype=torch.bfloat16, device="meta")
    pairs = torch.empty(64, 2, dtype=torch.int64, device="meta")
    return {"bf16": lambda: copy_blocks(cache, cache, pairs)}

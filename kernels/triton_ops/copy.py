"""Copying whole blocks of the cache: to fork a request, or to swap it out to host memory and back in.

A block holds all layers (2 MiB for Llama-8B), lies in one run of bytes, and its dtype does not matter. On one
device all pairs are one launch:

    pairs   (a0, b0) (a1, b1) ...       program (i, j) copies bytes j * CHUNK .. of source[a_i] to target[b_i]
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.reference.copy import copy_between_devices

CHUNK = 8192
"""Bytes per program: 4 loads of 16 bytes in flight for each of 128 threads."""


@triton.jit
def copy_blocks_kernel(
    source, target, block_pairs, block_bytes, source_stride, target_stride, CHUNK: tl.constexpr
):
    pair = tl.program_id(0)
    byte = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    origin = tl.load(block_pairs + 2 * pair)
    destination = tl.load(block_pairs + 2 * pair + 1)
    inside = byte < block_bytes
    content = tl.load(source + origin * source_stride + byte, mask=inside)
    tl.store(target + destination * target_stride + byte, content, mask=inside)


def copy_blocks(source: Tensor, target: Tensor, block_pairs: Tensor) -> None:
    if source.device != target.device:
        copy_between_devices(source, target, block_pairs)
        return
    source_bytes, target_bytes = (blocks.flatten(1).view(torch.uint8) for blocks in (source, target))
    block_bytes = source_bytes.shape[1]
    if len(block_pairs) == 0 or block_bytes == 0:
        return
    copy_blocks_kernel[(len(block_pairs), triton.cdiv(block_bytes, CHUNK))](
        *(source_bytes, target_bytes, block_pairs.to(source.device, non_blocking=True)),
        *(block_bytes, source_bytes.stride(0), target_bytes.stride(0)),
        CHUNK=CHUNK,
    )


def compile_cases(arch: int) -> dict[str, Callable[[], object]]:
    cache = torch.empty(1000, 32, 2, 8, 16, 128, dtype=torch.bfloat16, device="meta")
    pairs = torch.empty(64, 2, dtype=torch.int64, device="meta")
    return {"any dtype": lambda: copy_blocks(cache, cache, pairs)}

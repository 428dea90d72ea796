"""Storing a step's keys and values in the blocks of the cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

FP8_MAX = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
"""Largest finite number of each type."""


def reshape_and_cache(
    key: Tensor, value: Tensor, kv: Tensor, slot_mapping: Tensor, kv_scale: Any = None
) -> None:
    block_size = kv.shape[3]
    real = (slot_mapping >= 0).nonzero().flatten()
    slots = slot_mapping[real]
    blocks, offsets = slots // block_size, slots % block_size
    for part, x in enumerate((key[real], value[real])):
        if (most := FP8_MAX.get(kv.dtype)) is not None:
            x = (x.float() / kv_scale[part]).clamp(-most, most)
        elif kv.dtype == torch.int8:
            scale = x.float().abs().amax(-1) / 127
            kv_scale[blocks, part, :, offsets] = scale
            x = (x.float() / scale.clamp_min(torch.finfo(torch.float32).tiny)[..., None]).round()
        kv[blocks, part, :, offsets] = x.to(kv.dtype)


def dequantise_pages(pages: Tensor, kv_scale: Any, block_ids: Tensor) -> Tensor:
    """pages [n, 2, kv_heads, block_size, head_dim], the blocks `block_ids` [n] of a cache, as numbers."""
    if pages.dtype in FP8_MAX:
        return pages.float() * kv_scale.view(1, 2, 1, 1, 1)
    if pages.dtype == torch.int8:
        return pages.float() * kv_scale[block_ids][..., None]
    return pages

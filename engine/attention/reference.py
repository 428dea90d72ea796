"""The reference backend: one request after the other, fp32, no preparation.

Every other backend is tested against it. It is slow and runs on any device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.attention.backend import AttentionMetadata
from kernels import ops


class ReferenceAttention:
    """Attention straight from the definitions in `kernels/reference/attention.py`."""

    name = "reference"

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        pass

    def build(self, metadata: AttentionMetadata) -> None:
        pass

    def write(
        self,
        key: Tensor,
        value: Tensor,
        kv: Tensor,
        metadata: AttentionMetadata,
        kv_scale: Tensor | None = None,
    ) -> None:
        ops.reshape_and_cache(key, value, kv, metadata.slot_mapping, kv_scale)

    def attend(
        self,
        query: Tensor,
        kv: Tensor,
        metadata: AttentionMetadata,
        *,
        scale: float,
        sliding_window: int | None,
        kv_scale: Tensor | None = None,
    ) -> Tensor:
        return ops.paged_attention(
            query, kv, metadata, scale=scale, sliding_window=sliding_window, kv_scale=kv_scale
        )

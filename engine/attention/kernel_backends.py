"""Attention by the kernels: C++ on a CPU, Triton or CUDA C++ on a GPU, the reference anywhere.

The kernels take the step's metadata as their batch. Triton runs on a CPU too when TRITON_INTERPRET=1 is set, CUDA C++
through its host shim: slowly, for reading and testing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from engine.attention.backend import AttentionMetadata, AttentionShape
from engine.config import ConfigError
from kernels import registry
from kernels.ops import AttentionBatch


class KernelAttention:
    """One backend of `kernels.registry` for all batches."""

    name: str

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        if reason := registry.unavailable(self.name):
            raise ConfigError(f"attention backend {self.name!r} is not available here: {reason}")
        writer = registry.requested("reshape_and_cache") or self.name
        self._write = registry.get("reshape_and_cache", writer).load()
        self._attend = registry.get("paged_attention", self.name).load()

    @classmethod
    def unsupported(cls, shape: AttentionShape, device: torch.device, dtype: torch.dtype) -> str | None:
        """Return why a model of this shape cannot be served; None if it can."""
        kernel = registry.get("paged_attention", cls.name)
        example, kv_scale = shape.example(device, dtype), shape.example_scale(device, dtype)
        return kernel.unsupported(*example, scale=1.0, kv_scale=kv_scale)

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
        self._write(key, value, kv, metadata.slot_mapping, kv_scale)

    def attend(self, query: Tensor, kv: Tensor, metadata: AttentionMetadata, **options: Any) -> Tensor:
        return self._attend(query, kv, metadata, **options)


class ReferenceAttention(KernelAttention):
    """The definitions in `kernels/reference`: one request after the other, fp32, slow, on any device.

    Every other backend is tested against it.
    """

    name = "reference"


class CPUAttention(KernelAttention):
    """C++, compiled on first use: every batch, any number of queries."""

    name = "cpu"

    @classmethod
    def unsupported(cls, shape: AttentionShape, device: torch.device, dtype: torch.dtype) -> str | None:
        if device.type != "cpu":
            return f"it runs on a CPU, not on {device.type}"
        return super().unsupported(shape, device, dtype)


class TritonAttention(KernelAttention):
    """Triton: split-KV for decode, one varlen kernel for the rest."""

    name = "triton"


class CUDAAttention(KernelAttention):
    """CUDA C++ for decode rows; Triton, or without it the reference, for rows with more queries."""

    name = "cuda"

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(device, dtype)
        other = "reference" if registry.unavailable("triton") else "triton"
        self._attend_longer = registry.get("paged_attention", other).load()
        self._parts: list[tuple[slice, AttentionBatch, Callable[..., Tensor]]] = []

    def build(self, metadata: AttentionMetadata) -> None:
        """Cut the batch behind its decode rows: (tokens, rows, kernel) of both parts."""
        rows, tokens = metadata.num_decode_rows, metadata.query_start_loc_cpu[-1]
        starts, lens, table = metadata.query_start_loc, metadata.seq_lens, metadata.block_table
        self._parts = []
        if rows:
            decode = AttentionBatch(starts[: rows + 1], lens[:rows], table[:rows], 1)
            self._parts.append((slice(0, rows), decode, self._attend))
        if tokens > rows:
            longer = AttentionBatch(starts[rows:] - rows, lens[rows:], table[rows:], metadata.max_query_len)
            self._parts.append((slice(rows, tokens), longer, self._attend_longer))

    def attend(self, query: Tensor, kv: Tensor, metadata: AttentionMetadata, **options: Any) -> Tensor:
        out = torch.zeros_like(query)
        for tokens, batch, kernel in self._parts:
            out[tokens] = kernel(query[tokens], kv, batch, **options)
        return out

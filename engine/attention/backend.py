"""The seam between the model and its attention implementation.

A backend sees one packed batch at a time: the queries of all requests behind each other, and a KV cache that is cut
into blocks and reached through a block table.

    tokens      [ r0 | r1 | r2 r2 r2 r2 | r3 r3 ]          T = 8 queries, R = 4 rows
    query_start   0    1    2             6       8
                  `- decode -'`------ prefill ----'         decode rows (one query) come first

Source: vLLM v1/attention/backend.py and the idea of FlashAttention's varlen interface.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from engine.config import ConfigError
from engine.config.settings import load_class
from kernels import registry
from kernels.ops import AttentionBatch
from prep_common.dotted_path import load_object


@dataclass(slots=True, kw_only=True)
class AttentionMetadata(AttentionBatch):
    """A step's batch as the kernels take it, and what else the layers of the step need."""

    slot_mapping: Tensor
    """int64 [T]: block_id * block_size + offset where a token's KV goes; -1 is padding, written nowhere."""
    num_decode_rows: int
    """The first rows, with exactly one query each."""
    max_seq_len: int
    query_start_loc_cpu: list[int]
    """`query_start_loc`, readable without waiting for the device."""
    seq_lens_cpu: list[int]
    """`seq_lens`, readable without waiting for the device."""


@runtime_checkable
class AttentionBackend(Protocol):
    """Attention over the paged cache. One instance serves all layers of a model.

    Order of calls in a step: `build` once, then for each layer `write` and `attend`. A query sees its own key, so
    `write` comes first.
    """

    name: str

    def build(self, metadata: AttentionMetadata) -> None:
        """Prepare what all layers of this step share."""

    def write(
        self,
        key: Tensor,
        value: Tensor,
        kv: Tensor,
        metadata: AttentionMetadata,
        kv_scale: Tensor | None = None,
    ) -> None:
        """Store this step's keys and values.

        key, value: [T, kv_heads, head_dim]; kv: one layer of the cache, [num_blocks, 2, kv_heads, block_size,
        head_dim], usually a strided view. kv_scale: of a quantised cache, see `ops.reshape_and_cache`; a backend
        without quantised caches may leave the argument out.
        """

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
        """Causal attention of query [T, heads, head_dim] over the rows' own tokens, same shape out.

        `heads` is a multiple of the cache's `kv_heads`: query head h reads kv head h // (heads / kv_heads). With a
        sliding window of w, position p sees p - w + 1 .. p. Tokens past the last row (padding) come back as zeros.
        """


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The sizes and types of a model and its cache that decide whether a kernel supports them."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    query_dtype: torch.dtype

    def example(self, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor, AttentionBatch]:
        """Return a query, a cache of `dtype` and the batch of one decode row."""
        query = torch.zeros(1, self.num_heads, self.head_dim, dtype=self.query_dtype, device=device)
        cache_shape = (2, 2, self.num_kv_heads, self.block_size, self.head_dim)
        kv = torch.zeros(cache_shape, dtype=dtype, device=device)
        ints = [torch.tensor(values, dtype=torch.int32, device=device) for values in ([0, 1], [1], [[1]])]
        return query, kv, AttentionBatch(ints[0], ints[1], ints[2], max_query_len=1)

    def example_scale(self, device: torch.device, dtype: torch.dtype) -> Tensor | None:
        """Return the scales of `example`'s cache if it is quantised."""
        if dtype == torch.int8:
            return torch.ones(2, 2, self.num_kv_heads, self.block_size, device=device)
        return None if dtype.itemsize > 1 else torch.ones(2, device=device)


def kv_cache_shape(
    num_blocks: int, num_layers: int, num_kv_heads: int, block_size: int, head_dim: int
) -> tuple[int, int, int, int, int, int]:
    """Return the shape of the whole cache, block-major: one block is one contiguous run of bytes.

    So swap, fork and transfer of a block are one copy. `cache[:, layer]` is the view that a backend gets.
    """
    return (num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim)


BACKENDS: dict[str, str] = {
    "reference": "engine.attention.kernel_backends:ReferenceAttention",
    "sdpa": "engine.attention.sdpa:SDPAAttention",
    "cpu": "engine.attention.kernel_backends:CPUAttention",
    "triton": "engine.attention.kernel_backends:TritonAttention",
    "cuda": "engine.attention.kernel_backends:CUDAAttention",
}
"""Name -> class, imported on demand."""

_PREFERENCE = {"cpu": ("cpu", "sdpa", "reference"), "cuda": ("triton", "sdpa", "reference")}
"""Backends for each device type, the fastest first. SDPA serves every model, the reference quantised caches too."""


def get_backend(
    name: str | None, device: torch.device | str, dtype: torch.dtype, shape: AttentionShape | None = None
) -> AttentionBackend:
    """Return a backend by name, by path `package.module:Class`, or (None) the one that PREP_KERNELS asks for, else the
    fastest that works here.

    The class is called with (device, dtype of the cache); queries and results may have another dtype. Raises
    ConfigError for a backend that cannot serve a model of `shape`, and names those that can.
    """
    device = torch.device(device)
    if name is None:
        name = registry.requested("paged_attention") or _working(device, dtype, shape)[0]
    path = BACKENDS.get(name, name)
    if ":" not in path:
        raise ConfigError(
            f"unknown attention backend {name!r}; available: {', '.join(BACKENDS)}, "
            "or your own as 'package.module:Class'"
        )
    backend_class = load_class(path, "attention backend")
    backend: AttentionBackend = backend_class(device, dtype)
    if reason := _unsupported(backend_class, device, dtype, shape):
        others = ", ".join(_working(device, dtype, shape))
        raise ConfigError(
            f"attention backend {name!r} cannot serve this model: {reason}; these can: {others}"
        )
    return backend


def candidates(
    device: torch.device, dtype: torch.dtype, shape: AttentionShape | None
) -> dict[str, str | None]:
    """Return the backends for a device, the fastest first, each with the reason why it cannot serve here, or None."""
    return {
        name: (registry.unavailable(name) if name in registry.BACKENDS else None)
        or _unsupported(load_object(BACKENDS[name]), device, dtype, shape)
        for name in _PREFERENCE.get(device.type, ("sdpa", "reference"))
    }


def why_chosen(
    asked: str | None, device: torch.device, dtype: torch.dtype, shape: AttentionShape | None
) -> str:
    """Return why `get_backend` chooses as it does for these arguments, with the candidates that cannot serve."""
    if asked is not None:
        return "as asked"
    if registry.requested("paged_attention"):
        return "as PREP_KERNELS asks"
    reasons = candidates(device, dtype, shape)
    working = [name for name, reason in reasons.items() if reason is None]
    passed = [f"{name} cannot: {reason}" for name, reason in reasons.items() if reason is not None]
    slower = f"then {', '.join(working[1:])}" if working[1:] else "no other can"
    return "; ".join([f"the fastest that serves this model on {device.type}, {slower}", *passed])


def _working(device: torch.device, dtype: torch.dtype, shape: AttentionShape | None) -> list[str]:
    return [name for name, reason in candidates(device, dtype, shape).items() if reason is None]


def _unsupported(
    backend_class: type, device: torch.device, dtype: torch.dtype, shape: AttentionShape | None
) -> str | None:
    check = getattr(backend_class, "unsupported", None)
    return check(shape, device, dtype) if check and shape else None

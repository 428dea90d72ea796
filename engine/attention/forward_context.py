"""The one piece of ambient state: what a forward pass needs besides its tokens.

Without it every module between the runner and the attention layer would pass the batch's geometry along.
Source: vLLM forward_context.py, nano-vllm utils/context.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from torch import Tensor

from engine.attention.backend import AttentionBackend, AttentionMetadata


@dataclass(slots=True)
class ForwardContext:
    """One step's batch geometry, and where its keys and values live."""

    attn_metadata: AttentionMetadata
    backend: AttentionBackend
    """Already built for `attn_metadata` when the forward pass starts."""
    kv_cache: Tensor
    """[num_blocks, layers, 2, kv_heads, block_size, head_dim], see `backend.kv_cache_shape`."""
    kv_scales: list[Tensor] | None = None
    """Per layer the scales of a quantised cache, see `engine/quant/kv_cache.py`."""
    token_adapter: Tensor | None = None
    """int32 [T]: each token's slot for adapters, -1 for none; None when no token has one (`engine/lora`)."""


_current: ContextVar[ForwardContext | None] = ContextVar("forward_context", default=None)
"""Per thread, so that two engines of one process can each run a step in their own thread."""


@contextmanager
def set_forward_context(context: ForwardContext) -> Iterator[ForwardContext]:
    """Make `context` current inside the `with` block. Forward passes do not nest."""
    if _current.get() is not None:
        raise RuntimeError("a forward pass is already under way: forward contexts do not nest")
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)


def get_forward_context() -> ForwardContext:
    """The context of the forward pass under way."""
    context = _current.get()
    if context is None:
        raise RuntimeError(
            "no forward pass is under way: call the model inside `with set_forward_context(...)`"
        )
    return context

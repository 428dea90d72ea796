"""The attention layer: no weights of its own, only the way to its slice of the KV cache."""

from __future__ import annotations

from torch import Tensor, nn

from engine.attention.forward_context import get_forward_context


class Attention(nn.Module):
    """Stores a step's keys and values and attends to all of the request's, through the current backend."""

    def __init__(self, layer_index: int, head_dim: int, sliding_window: int | None) -> None:
        super().__init__()
        self.layer_index = layer_index
        self.scale = head_dim**-0.5
        self.sliding_window = sliding_window

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """query [T, heads, head_dim]; key, value [T, kv_heads, head_dim] -> [T, heads, head_dim]."""
        context = get_forward_context()
        kv = context.kv_cache[:, self.layer_index]
        quantised = {} if context.kv_scales is None else {"kv_scale": context.kv_scales[self.layer_index]}
        context.backend.write(key, value, kv, context.attn_metadata, **quantised)
        return context.backend.attend(
            query,
            kv,
            context.attn_metadata,
            scale=self.scale,
            sliding_window=self.sliding_window,
            **quantised,
        )

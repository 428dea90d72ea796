"""E01: a model whose layers differ: some see everything, the others a window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment
from quizzes.experiments.memory._shapes import (
    HeadDim,
    Heads,
    KvDtype,
    Layers,
    Tokens,
    attention_shape,
    deployment_of,
)


@dataclass(frozen=True)
class HybridKv:
    """Bytes of one sequence."""

    full_layers_bytes: Annotated[int, "B"]
    window_layers_bytes: Annotated[int, "B"]
    hybrid_bytes: Annotated[int, "B"]
    all_full_bytes: Annotated[int, "B"]
    """If every layer kept every token."""
    saving: Annotated[float, "share"]


@experiment("E01")
def hybrid_kv(
    ctx: Context,
    *,
    full_layers: Layers = 8,
    window_layers: Layers = 40,
    window: Annotated[int, Field(ge=1, le=1_000_000)] = 1024,
    kv_heads: Heads = 8,
    head_dim: HeadDim = 128,
    kv_dtype: KvDtype = "bfloat16",
    tokens: Tokens = 32_768,
) -> HybridKv:
    """KV bytes of a sequence when some layers attend to everything and the others to the last `window` positions.

    An ideal hybrid manager keeps what can still be read; blocks and lookahead add a little to it.
    """

    def bytes_of(layers: int, sliding_window: int | None) -> int:
        shape = attention_shape(layers, kv_heads, head_dim, sliding_window)
        return int(deployment_of(shape, kv_dtype).kv_bytes_per_token * shape.kv_tokens_held(tokens))

    full, windowed = bytes_of(full_layers, None), bytes_of(window_layers, window)
    everything = bytes_of(full_layers + window_layers, None)
    return HybridKv(full, windowed, full + windowed, everything, 1 - (full + windowed) / everything)

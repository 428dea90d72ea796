"""E27: how the cache lies in memory, and what a warp's loads touch when its lanes go along one axis or another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment

LANES, SECTOR = 32, 32


@dataclass(frozen=True)
class Layout:
    """One layer's cache, [num_blocks, 2, kv_heads, block_size, head_dim] with a stride between blocks."""

    block_bytes: Annotated[int, "B"]
    """From one block to the next: all layers lie between."""
    token_stride: Annotated[int, "numbers"]
    """From a position to the next within a block."""
    head_stride: Annotated[int, "numbers"]
    key_to_value: Annotated[int, "numbers"]
    sectors_along_dim: Annotated[int, "sectors"]
    """32-byte sectors when 32 lanes load neighbouring numbers of one key."""
    sectors_along_tokens: Annotated[int, "sectors"]
    """When 32 lanes load the same dimension of 32 positions in order (of as many blocks as that takes)."""


@experiment("E27")
def kv_layout(
    ctx: Context,
    *,
    num_layers: Annotated[int, Field(ge=1, le=128)] = 32,
    kv_heads: Annotated[int, Field(ge=1, le=128)] = 8,
    block_size: Annotated[int, Field(ge=1, le=256)] = 16,
    head_dim: Annotated[int, Field(ge=32, le=256, multiple_of=32)] = 128,
    bytes_per_number: Annotated[int, Field(ge=1, le=4)] = 2,
) -> Layout:
    """Strides of the engine's cache (`engine/attention/backend.py`), on a tensor that takes no memory."""
    import torch

    from engine.attention.backend import kv_cache_shape

    shape = kv_cache_shape(64, num_layers, kv_heads, block_size, head_dim)
    view = torch.empty(shape, device="meta")[:, 0]
    block, part, head, token, _ = view.stride()

    def sectors(numbers: list[int]) -> int:
        return len({number * bytes_per_number // SECTOR for number in numbers})

    along_tokens = [i // block_size * block + i % block_size * token for i in range(LANES)]
    return Layout(
        block_bytes=block * bytes_per_number,
        token_stride=token,
        head_stride=head,
        key_to_value=part,
        sectors_along_dim=sectors(list(range(LANES))),
        sectors_along_tokens=sectors(along_tokens),
    )

"""E28: bytes between memory and chip for textbook attention and for tiles that never leave the chip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment


@dataclass(frozen=True)
class Bytes:
    """One head, `queries` queries over `keys` keys, no mask."""

    textbook: Annotated[int, "B"]
    """Three kernels: scores are written, read and written by softmax, and read again."""
    fused: Annotated[int, "B"]
    """FlashAttention: for each tile of queries, all keys and values once; scores stay on the chip."""
    ratio: Annotated[float, "x"]
    score_bytes: Annotated[int, "B"]
    """Of the whole score matrix: what the textbook version must also have room for."""
    flops: Annotated[int, "FLOP"]
    """The same for both."""


@experiment("E28")
def attention_traffic(
    ctx: Context,
    *,
    queries: Annotated[int, Field(ge=1, le=65536)] = 4096,
    keys: Annotated[int, Field(ge=1, le=1_000_000)] = 4096,
    head_dim: Annotated[int, Field(ge=8, le=512)] = 128,
    tile: Annotated[int, Field(ge=1, le=1024)] = 128,
    bytes_per_number: Annotated[int, Field(ge=1, le=4)] = 2,
) -> Bytes:
    """Walk through the loads and stores of both and add up their bytes."""
    row = head_dim * bytes_per_number
    scores = queries * keys * bytes_per_number
    textbook = (queries + keys) * row + scores  # scores = q k^T
    textbook += scores + scores  # softmax
    textbook += scores + keys * row + queries * row  # probabilities times values
    fused = 0
    for start in range(0, queries, tile):
        fused += 2 * min(tile, queries - start) * row  # queries in, outputs out
        fused += 2 * keys * row
    return Bytes(textbook, fused, textbook / fused, scores, 4 * queries * keys * head_dim)

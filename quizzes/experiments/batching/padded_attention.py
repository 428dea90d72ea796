"""E29: contiguous attention over a padded rectangle with a mask: is it right, and how much of it is padding?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment


@dataclass(frozen=True)
class PaddedAttention:
    """Each row in the padded batch against the same row alone."""

    max_difference: Annotated[float, "absolute"]
    right_rows: Annotated[int, "rows"]
    """Within 1e-5 of the row alone."""
    rows: Annotated[int, "rows"]
    padded_pairs: Annotated[int, "pairs"]
    """(query, key) pairs of the rectangle."""
    useful_pairs: Annotated[int, "pairs"]
    """Of them, those that the causal rows need."""
    waste: Annotated[float, "share"]


@experiment("E29")
def padded_attention(
    ctx: Context,
    *,
    lens: Annotated[list[Annotated[int, Field(ge=1, le=512)]], Field(min_length=1, max_length=16)] = (
        7,
        90,
        33,
        150,
    ),
    heads: Annotated[int, Field(ge=1, le=8)] = 2,
    head_dim: Annotated[int, Field(ge=4, le=64)] = 32,
) -> PaddedAttention:
    """Causal attention in fp32 with PyTorch's own kernel, contiguous tensors, no paging: padded with a mask, and row by
    row without padding. It shows what contiguous attention can do, and what it computes in vain."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention as attend

    generator = torch.Generator().manual_seed(0)
    rows, longest = len(lens), max(lens)
    q, k, v = (torch.randn(rows, heads, longest, head_dim, generator=generator) for _ in range(3))
    lengths = torch.tensor(lens)
    visible = torch.arange(longest)[None, :] < lengths[:, None]
    mask = visible[:, None, None, :] & torch.ones(longest, longest, dtype=torch.bool).tril()
    together = attend(q, k, v, attn_mask=mask)
    differences = []
    for row, length in enumerate(lens):
        alone = attend(q[row, :, :length], k[row, :, :length], v[row, :, :length], is_causal=True)
        differences.append(float((together[row, :, :length] - alone).abs().max()))
    useful = sum(length * (length + 1) // 2 for length in lens)
    rectangle = rows * longest * longest
    return PaddedAttention(
        max(differences),
        sum(difference < 1e-5 for difference in differences),
        rows,
        rectangle,
        useful,
        1 - useful / rectangle,
    )

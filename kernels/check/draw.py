"""Random arguments for the cases of operations, of three sizes.

Sizes: `tiny` for the Triton interpreter and the host shim, which take milliseconds for each step of a loop;
`small` for the CPU; `large` for a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor

Size = Literal["tiny", "small", "large"]

NAN_ROW = "a row of NaN"
"""Prefix in the name of a case whose first tensor gets NaN in row 1."""

Made = Iterator[tuple[Any, ...]]
"""Name of a case and the arguments of its call."""


class Draw:
    """A random generator with the shapes that cases need."""

    def __init__(self, seed: int, dtype: torch.dtype, size: Size) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.dtype = dtype
        self.size = size
        self.rows = (0, 1, 3, self.pick(5, 33, 257))

    def pick(self, tiny: int, small: int, large: int) -> int:
        """The figure for this size."""
        return {"tiny": tiny, "small": small, "large": large}[self.size]

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.randn(*shape, generator=self.generator).to(dtype or self.dtype)

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.generator) * (high - low) + low

    def integers(self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        """low .. high - 1"""
        return torch.randint(low, high, shape, generator=self.generator, dtype=torch.int64).to(dtype)

    def permutation(self, n: int) -> Tensor:
        return torch.randperm(n, generator=self.generator)

    def strided(self, rows: int, width: int) -> Tensor:
        """[rows, width], the middle columns of a wider matrix."""
        return self.normal(rows, width + 16)[:, 8 : 8 + width]

    def heads(self, tokens: int, head_dim: int, *heads: int) -> list[Tensor]:
        """Slices [tokens, heads_i, head_dim] of one fused tensor, as a merged qkv projection gives them."""
        fused = self.normal(tokens, sum(heads) * head_dim)
        parts = fused.split([num_heads * head_dim for num_heads in heads], dim=1)
        return [
            part.view(tokens, num_heads, head_dim) if tokens else part.reshape(0, num_heads, head_dim)
            for part, num_heads in zip(parts, heads, strict=True)
        ]

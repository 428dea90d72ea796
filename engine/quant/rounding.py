"""Rounding a matrix to nearest, group by group: what every method here does in the end.

    row n   | k = 0 .. G-1 | G .. 2G-1 | ...        weight[n, k] ~ (step - zero[n, g]) * scale[n, g],  g = k // G
              one scale and one zero point each     steps are integers from 0 to 2**bits - 1

Asymmetric: the range of the group, stretched to contain 0. Symmetric: the zero point is the middle (8 of 16), and
the largest weight is half the range, 7.5 steps away from it, as in GPTQ and llm-compressor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Grid:
    """The numbers that a group can hold: (0 .. 2**bits - 1 - zero) * scale."""

    scale: Tensor  # [N, K / G], in the type in which it will be stored
    zero: Tensor  # uint8 [N, K / G]
    bits: int

    def round(self, weight: Tensor) -> Tensor:
        """Nearest steps of a matrix [N, K]: uint8 [N, K]. Halves go to the even step."""
        rows, columns = weight.shape
        groups = weight.float().reshape(rows, self.scale.shape[1], -1)
        steps = (groups / self.scale.float()[..., None]).round() + self.zero[..., None]
        return steps.clamp(0, 2**self.bits - 1).to(torch.uint8).reshape(rows, columns)

    def restore(self, steps: Tensor) -> Tensor:
        """The matrix that steps [N, K] stand for, in fp32."""
        rows, columns = steps.shape
        groups = steps.reshape(rows, self.scale.shape[1], -1).to(torch.int16)
        offset = groups - self.zero[..., None].to(torch.int16)
        return (offset * self.scale.float()[..., None]).reshape(rows, columns)


def fit_grid(
    weight: Tensor,
    group_size: int,
    *,
    bits: int = 4,
    symmetric: bool = False,
    scale_dtype: torch.dtype = torch.float16,
) -> Grid:
    """The grid of every group of a matrix [N, K]; `group_size` divides K. A group of zeros has scale 1."""
    rows, columns = weight.shape
    groups = weight.float().reshape(rows, columns // group_size, group_size)
    largest_step = 2**bits - 1
    low, high = groups.amin(-1).clamp_max(0), groups.amax(-1).clamp_min(0)
    scale = groups.abs().amax(-1) / (largest_step / 2) if symmetric else (high - low) / largest_step
    scale = scale.to(scale_dtype)
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    if symmetric:
        zero = torch.full_like(scale, 2 ** (bits - 1), dtype=torch.uint8)
    else:
        zero = (-low / scale.float()).round().clamp(0, largest_step).to(torch.uint8)
    return Grid(scale, zero, bits)


@dataclass(frozen=True, slots=True)
class Rounded:
    """A matrix [N, K] in 4 or 8 bits, its columns in the model's order."""

    steps: Tensor  # uint8 [N, K]
    scale: Tensor  # [N, K / G]
    zero: Tensor  # uint8 [N, K / G]
    g_idx: Tensor  # int64 [K]: the group of every column

    def restore(self) -> Tensor:
        """The matrix in fp32."""
        offset = self.steps.to(torch.int16) - self.zero.to(torch.int16)[:, self.g_idx]
        return offset * self.scale.float()[:, self.g_idx]


def round_to_nearest(weight: Tensor, group_size: int, **options: Any) -> Rounded:
    """A matrix [N, K] on the grid of each of its groups; options: those of `fit_grid`."""
    grid = fit_grid(weight, group_size, **options)
    g_idx = torch.arange(weight.shape[1]) // group_size
    return Rounded(grid.round(weight), grid.scale, grid.zero, g_idx)

"""GPTQ: round one column after the other, and let the columns that are still to come make good for the error.

    for column k of W, left to right:
        q = round(w_k);  e = (w_k - q) / U[k, k]
        all columns j > k:  w_j -= e * U[k, j]

U is the upper Cholesky factor of the inverse of H = x x^T (the gram matrix of the inputs): it says how the error in
column k is best compensated by the others. With act-order the columns come in the order of H's diagonal, the important
ones first, while there are still many others to compensate with.

The lazy block of the paper is a group here: its grid is fitted when its first column is reached, to weights that have
taken in all errors so far. Source: GPTQ (Frantar et al. 2022), algorithm 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.quant.rounding import Grid, Rounded, fit_grid

DAMPING = 0.01
"""Added to H's diagonal, in units of its mean, so that it can be inverted."""


def gptq_round(
    weight: Tensor,
    gram: Tensor,
    group_size: int,
    *,
    bits: int = 4,
    symmetric: bool = True,
    act_order: bool = False,
    scale_dtype: torch.dtype = torch.float16,
) -> Rounded:
    """Round a matrix [N, K] whose inputs have this gram matrix [K, K]."""
    columns = weight.shape[1]
    order = gram.diagonal().argsort(descending=True, stable=True) if act_order else torch.arange(columns)
    remaining = weight.detach().float()[:, order].clone()
    compensation = _compensation(gram[order][:, order]).float()

    steps = torch.empty(remaining.shape, dtype=torch.uint8)
    grids: list[Grid] = []
    for begin in range(0, columns, group_size):
        end = begin + group_size
        grid = fit_grid(
            remaining[:, begin:end], group_size, bits=bits, symmetric=symmetric, scale_dtype=scale_dtype
        )
        errors = torch.empty(len(weight), group_size)
        for column in range(begin, end):
            target = remaining[:, column : column + 1]
            steps[:, column : column + 1] = grid.round(target)
            rounded = grid.restore(steps[:, column : column + 1])
            error = (target - rounded) / compensation[column, column]
            remaining[:, column + 1 : end] -= error * compensation[column, column + 1 : end]
            errors[:, column - begin] = error[:, 0]
        remaining[:, end:] -= errors @ compensation[begin:end, end:]
        grids.append(grid)

    scale = torch.cat([grid.scale for grid in grids], dim=1)
    zero = torch.cat([grid.zero for grid in grids], dim=1)
    g_idx = torch.empty(columns, dtype=torch.int64)
    g_idx[order] = torch.arange(columns) // group_size
    return Rounded(steps[:, order.argsort()], scale, zero, g_idx)


def _compensation(gram: Tensor) -> Tensor:
    """The upper Cholesky factor of the inverse of the damped gram matrix. Inputs that are always 0 count as 1."""
    hessian = gram.double().clone()
    diagonal = hessian.diagonal()
    diagonal[diagonal == 0] = 1
    diagonal += DAMPING * diagonal.mean()
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(hessian))
    return torch.linalg.cholesky(inverse, upper=True)

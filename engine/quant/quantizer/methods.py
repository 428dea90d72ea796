"""The methods that use calibration: GPTQ rounds with compensation, AWQ and SmoothQuant choose scales to fold.

GPTQ: round one column after the other, and let the columns that are still to come make good for the error.

    for column k of W, left to right:
        q = round(w_k);  e = (w_k - q) / U[k, k]
        all columns j > k:  w_j -= e * U[k, j]

U is the upper Cholesky factor of the inverse of H = x x^T (the gram matrix of the inputs): it says how the error in
column k is best compensated by the others. With act-order the columns come in the order of H's diagonal, the important
ones first, while there are still many others to compensate with. The lazy block of the paper is a group here: its grid
is fitted when its first column is reached, to weights that have taken in all errors so far.

AWQ: make the columns that large activations meet larger before rounding, so that they are rounded less coarsely.

    s = mean|x| ** a        one number for each channel; W is rounded as W * s, and x arrives divided by s
    a = 0 .. 1 in 20 steps  the one whose rounded matrices are off by the least, on what the layer sees

A group's grid is set by its largest weights, so a few columns can be made twice as large at no price: their error
halves, and that of the rest stays. The division is folded into the layer before (`folding.py`).

SmoothQuant: move the outliers of the activations into the weights, where every output channel has its own scale.

    s = max|x| ** a / max|W| ** (1 - a)      one number for each channel of x
    x / s has no channel far above the rest any more; W * s has larger columns, which int8 bears well

Sources: GPTQ (Frantar et al. 2022), algorithm 1; AWQ (Lin et al. 2023), section 3.2, and AutoAWQ's scale search without
its clipping; SmoothQuant (Xiao et al. 2022), equation 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.quant.quantizer.calibration import InputStatistics
from engine.quant.rounding import Grid, Rounded, fit_grid

DAMPING = 0.01  # GPTQ: added to H's diagonal, in units of its mean, so that it can be inverted
NUM_STEPS = 20


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
        group = remaining[:, begin:end]
        grid = fit_grid(group, group_size, bits=bits, symmetric=symmetric, scale_dtype=scale_dtype)
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


@dataclass(frozen=True)
class ScaleChoice:
    """The best scales of a search, and what they are worth."""

    scale: Tensor  # [K]
    alpha: float
    error: float
    error_unscaled: float  # Squared output error at alpha and at 0, plain rounding to nearest


def search_scale(weights: list[Tensor], inputs: InputStatistics, group_size: int) -> ScaleChoice:
    """AWQ's scales: those that round these matrices [N_i, K], which read the same inputs, best."""

    def trial(alpha: float) -> tuple[float, float, Tensor]:
        scale = inputs.abs_mean.clamp_min(1e-4) ** alpha
        scale = scale / (scale.max() * scale.min()).sqrt()
        error = 0.0
        for weight in weights:
            scaled = weight * scale
            grid = fit_grid(scaled, group_size)
            error += inputs.squared_error(grid.restore(grid.round(scaled)) / scale - weight)
        return error, alpha, scale

    trials = [trial(step / NUM_STEPS) for step in range(NUM_STEPS)]
    error, alpha, scale = min(trials, key=lambda tried: tried[0])
    return ScaleChoice(scale, alpha, error, error_unscaled=trials[0][0])


def smoothing_scale(weights: Sequence[Tensor], abs_max: Tensor, alpha: float) -> Tensor:
    """SmoothQuant's scales of the inputs [K] of matrices [N_i, K], whose channels reach abs_max [K]."""
    largest_weight = torch.stack([weight.abs().amax(0) for weight in weights]).amax(0)
    scale = abs_max.clamp_min(1e-5) ** alpha / largest_weight.clamp_min(1e-5) ** (1 - alpha)
    return scale.clamp(1e-3, 1e3)

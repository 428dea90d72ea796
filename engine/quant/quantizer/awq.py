"""AWQ: make the columns that large activations meet larger before rounding, so that they are rounded less coarsely.

    s = mean|x| ** a        one number for each channel; W is rounded as W * s, and x arrives divided by s
    a = 0 .. 1 in 20 steps  the one whose rounded matrices are off by the least, on what the layer sees

A group's grid is set by its largest weights, so a few columns can be made twice as large at no price: their error
halves, and that of the rest stays. The division is folded into the layer before (`folding.py`).

Source: AWQ (Lin et al. 2023), section 3.2; AutoAWQ's scale search, without its clipping.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.quant.quantizer.calibration import InputStatistics
from engine.quant.rounding import fit_grid

NUM_STEPS = 20


@dataclass(frozen=True)
class ScaleChoice:
    """The best scales of a search, and what they are worth."""

    scale: Tensor
    """[K]"""
    alpha: float
    error: float
    error_unscaled: float
    """Squared output error at alpha and at 0, plain rounding to nearest."""


def search_scale(weights: list[Tensor], inputs: InputStatistics, group_size: int) -> ScaleChoice:
    """The scales that round these matrices [N_i, K], which read the same inputs, best."""
    best: ScaleChoice | None = None
    unscaled = 0.0
    for step in range(NUM_STEPS):
        alpha = step / NUM_STEPS
        scale = inputs.abs_mean.clamp_min(1e-4) ** alpha
        scale = scale / (scale.max() * scale.min()).sqrt()
        error = sum(inputs.squared_error(_difference(weight, scale, group_size)) for weight in weights)
        if step == 0:
            unscaled = error
        if best is None or error < best.error:
            best = ScaleChoice(scale, alpha, error, unscaled)
    assert best is not None
    return best


def _difference(weight: Tensor, scale: Tensor, group_size: int) -> Tensor:
    scaled = weight * scale
    grid = fit_grid(scaled, group_size)
    return grid.restore(grid.round(scaled)) / scale - weight

"""SmoothQuant: move the outliers of the activations into the weights, where every output channel has its own scale.

    s = max|x| ** a / max|W| ** (1 - a)      one number for each channel of x
    x / s has no channel far above the rest any more; W * s has larger columns, which int8 bears well

Source: SmoothQuant (Xiao et al. 2022), equation 4.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def smoothing_scale(weights: Sequence[Tensor], abs_max: Tensor, alpha: float) -> Tensor:
    """The scales of the inputs [K] of matrices [N_i, K], whose channels reach abs_max [K]."""
    largest_weight = torch.stack([weight.abs().amax(0) for weight in weights]).amax(0)
    scale = abs_max.clamp_min(1e-5) ** alpha / largest_weight.clamp_min(1e-5) ** (1 - alpha)
    return scale.clamp(1e-3, 1e3)

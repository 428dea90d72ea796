"""Moving a factor from a layer into the one before it: the function stays, what is hard to round changes places.

    y = W x,  x = n * r  (a norm's weight times the normalised stream)

    (W * s) (x / s) = W x      for any s > 0, one number for each channel of x

Dividing the norm's weight by s divides x by s. AWQ makes important columns of W larger before rounding them;
SmoothQuant takes the outliers out of x; and the other way round (`inject_outliers`) a small model gets the outliers
that large ones have, without a change in what it computes.

Sources: AWQ (Lin et al. 2023), section 3; SmoothQuant (Xiao et al. 2022), section 4; LLM.int8() on outliers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from engine.zoo.model import DecoderLayer, RMSNorm, ShopModel

INPUTS = {
    "input_layernorm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attn.v_proj": ("self_attn.o_proj",),
    "post_attention_layernorm": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.up_proj": ("mlp.down_proj",),
}
"""Source of an input x of a decoder layer -> the matrices that read it; the first is measured for all of them."""
INPUT_OF = {name: names[0] for names in INPUTS.values() for name in names}


@dataclass(frozen=True)
class FoldGroup:
    """Matrices that read the same x, and what makes that x."""

    input_name: str  # the module whose input is measured, as in `watched`
    previous: RMSNorm | nn.Linear
    linears: tuple[nn.Linear, ...]

    def fold(self, scale: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """x becomes x / scale, in place; returns the scale that was really used.

        scale [K]. A norm's weight is rounded to `dtype`, in which it will be stored; what that changes is made good in
        the matrices behind it, so that rounding costs nothing.
        """
        with torch.no_grad():
            if isinstance(self.previous, nn.Linear):
                self.previous.weight /= scale[:, None]
            else:
                before = self.previous.weight.clone()
                after = (before / scale).to(dtype).float()
                scale = torch.where(after == 0, torch.ones_like(scale), before / after)
                self.previous.weight.copy_(before / scale)
            for linear in self.linears:
                linear.weight *= scale
        return scale


def watched(layer: DecoderLayer) -> dict[str, nn.Linear]:
    """One matrix for each distinct input of a layer."""
    return {names[0]: submodule(layer, names[0]) for names in INPUTS.values()}


def submodule(layer: DecoderLayer, name: str) -> Any:
    return layer.get_submodule(name)


def fold_groups(layer: DecoderLayer, *, only_norms: bool = False) -> list[FoldGroup]:
    """All groups of a layer, or those behind a norm. The output projection has none where query heads share value
    heads: no channel of its input belongs to one channel of the values."""
    is_shared = layer.self_attn.heads != layer.self_attn.kv_heads
    return [
        FoldGroup(names[0], submodule(layer, previous), tuple(submodule(layer, name) for name in names))
        for previous, names in INPUTS.items()
        if previous.endswith("norm") or not (only_norms or (is_shared and previous == "self_attn.v_proj"))
    ]


def inject_outliers(model: ShopModel, *, factor: float = 64.0, channels: Sequence[int] = (3, 17)) -> None:
    """Make the activations behind every norm large in a few channels, in place, without changing what is computed.

    The norm's weight is multiplied by `factor` there and the columns that read it are divided. With a power of two
    the results are the same bit for bit in floating point; rounding to integers sees another model.
    """
    for layer in model.model.layers:
        for group in fold_groups(cast("DecoderLayer", layer), only_norms=True):
            size = len(group.previous.weight)
            scale = torch.ones(size)
            scale[[channel % size for channel in channels]] = 1 / factor
            group.fold(scale)

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
from typing import cast

import torch
from torch import Tensor, nn

from engine.zoo.model import DecoderLayer, RMSNorm, ShopModel


@dataclass(frozen=True)
class FoldGroup:
    """Matrices that read the same x, and what makes that x."""

    input_name: str  # The module whose input is measured: the first of the matrices, as in `watched`
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
    names = ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj")
    return {name: cast("nn.Linear", layer.get_submodule(name)) for name in names}


ATTENTION_INPUT, MLP_INPUT = "self_attn.q_proj", "mlp.gate_proj"
INPUT_OF = {
    "self_attn.k_proj": ATTENTION_INPUT,
    "self_attn.v_proj": ATTENTION_INPUT,
    "mlp.up_proj": MLP_INPUT,
}
"""Matrices that read the same x as another one, which is measured for them."""


def norm_groups(layer: DecoderLayer) -> list[FoldGroup]:
    """Matrices behind a norm."""
    attention, mlp = layer.self_attn, layer.mlp
    qkv = (attention.q_proj, attention.k_proj, attention.v_proj)
    return [
        FoldGroup(ATTENTION_INPUT, layer.input_layernorm, qkv),
        FoldGroup(MLP_INPUT, layer.post_attention_layernorm, (mlp.gate_proj, mlp.up_proj)),
    ]


def fold_groups(layer: DecoderLayer) -> list[FoldGroup]:
    """All groups of a layer. The output projection has none where query heads share value heads: no channel of its
    input belongs to one channel of the values."""
    attention, mlp = layer.self_attn, layer.mlp
    groups = [*norm_groups(layer), FoldGroup("mlp.down_proj", mlp.up_proj, (mlp.down_proj,))]
    if attention.heads == attention.kv_heads:
        groups.append(FoldGroup("self_attn.o_proj", attention.v_proj, (attention.o_proj,)))
    return groups


def inject_outliers(model: ShopModel, *, factor: float = 64.0, channels: Sequence[int] = (3, 17)) -> None:
    """Make the activations behind every norm large in a few channels, in place, without changing what is computed.

    The norm's weight is multiplied by `factor` there and the columns that read it are divided. With a power of two
    the results are the same bit for bit in floating point; rounding to integers sees another model.
    """
    for layer in model.model.layers:
        for group in norm_groups(cast("DecoderLayer", layer)):
            size = len(group.previous.weight)
            scale = torch.ones(size)
            scale[[channel % size for channel in channels]] = 1 / factor
            group.fold(scale)

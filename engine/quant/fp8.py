"""8-bit floating point weights and activations (e4m3: largest 448), as FP8 checkpoints store them.

    weight        float8_e4m3fn [N, K]
    weight_scale  fp32: one number for the matrix, or one per output channel
    input_scale   fp32, one number: activations are divided by it (static); without it, each token by its max|x| / 448

A merged layer keeps the scale of each part for that part's rows, so nothing is rounded a second time when matrices with
different scales are stacked (vLLM rounds them again to the largest). Their static input scales are of the same x; if a
checkpoint gives different ones, the largest is taken, which no part can overflow.

Sources: FP8 Formats for Deep Learning (Micikevicius et al. 2022); vLLM model_executor/layers/quantization/fp8.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from engine.config import ConfigError
from engine.layers.linear import Linear, LinearMethod
from engine.quant.base import HEAD, UNQUANTIZED, all_or_none, require
from kernels import ops

E4M3 = torch.float8_e4m3fn


def use_fp8(layer: Linear, qweight: Tensor, scale: Tensor, input_scale: Tensor | None = None) -> None:
    """Give the layer its matrix: e4m3 [N, K], one scale per row [N], and the static scale of x, if there is one."""
    layer.qweight = qweight.contiguous()
    layer.scale = scale.float().reshape(-1).contiguous()
    layer.input_scale = input_scale


class FP8LinearMethod:
    """W8A8 in e4m3 with the layer's `qweight`, `scale` and `input_scale`; subclasses say where these come from."""

    def apply(self, layer: Linear, x: Tensor) -> Tensor:
        y = ops.fp8_linear(x, layer.qweight, layer.scale, layer.input_scale)
        return y if layer.bias is None else y.add_(layer.bias)

    def is_recordable(self, layer: Linear) -> bool:
        return False  # there is no C++ kernel: a CPU emulates e4m3


class FP8CheckpointMethod(FP8LinearMethod):
    """e4m3 matrices with their scales in the checkpoint."""

    def __init__(self, *, per_channel: bool, static_input: bool) -> None:
        self.per_channel = per_channel
        self.static_input = static_input

    def create_weights(self, layer: Linear) -> None:
        for part, rows in layer.parts.items():
            shape = (rows, 1) if self.per_channel else ()
            tensors = {
                "weight": torch.empty(rows, layer.in_features, dtype=E4M3),
                "weight_scale": torch.empty(shape),
            }
            if self.static_input:
                tensors["input_scale"] = torch.empty(())
            layer.stored[part] = tensors

    def process_weights_after_loading(self, layer: Linear) -> None:
        parts = list(zip(layer.stored.values(), layer.parts.values(), strict=True))
        scale = torch.cat([tensors["weight_scale"].reshape(-1).expand(rows) for tensors, rows in parts])
        input_scale = None
        if self.static_input:
            input_scale = torch.stack([tensors["input_scale"].reshape(()) for tensors, _ in parts]).max()
            if not input_scale > 0:
                raise ConfigError(
                    f"an input_scale of an FP8 checkpoint is {input_scale}, expected a number above 0"
                )
        use_fp8(layer, torch.cat([tensors["weight"] for tensors, _ in parts]), scale, input_scale)


@dataclass(frozen=True)
class FP8Config:
    """`quant_method: fp8`: per-tensor weight scales; `activation_scheme` static or dynamic."""

    static_input: bool
    ignored: tuple[str, ...] = field(default=())

    @classmethod
    def from_config(cls, raw: dict[str, Any]) -> FP8Config:
        if raw.get("weight_block_size") is not None:
            raise ConfigError(
                f"quantization_config (fp8): weight_block_size = {raw['weight_block_size']} is not supported; "
                "supported: one scale for each matrix (fp8) or each output channel (compressed-tensors)"
            )
        require(raw, "fmt", ("e4m3", "float8_e4m3fn"), default="e4m3")
        scheme = require(raw, "activation_scheme", ("static", "dynamic"))
        ignored = raw.get("ignored_layers") or raw.get("modules_to_not_convert") or ()
        return cls(scheme == "static", tuple(ignored))

    def linear_method(self, name: str, layer: Linear) -> LinearMethod:
        if name == HEAD or all_or_none(
            name, layer, (part in self.ignored for part in layer.part_names(name))
        ):
            return UNQUANTIZED
        return FP8CheckpointMethod(per_channel=False, static_input=self.static_input)

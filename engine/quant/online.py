"""A float checkpoint, quantised while it is loaded: `quantization="rtn"`, `"int8"`, `"fp8"`, `"nvfp4"` and others.

Nothing is calibrated: every matrix is rounded to nearest when its weights are in. The matrices are in memory as floats
until then, so loading takes as much as the float model; running does not.

    rtn       4 bits, groups of 128 (or the largest of 64 and 32 that divides the row, or the row), fp16 scales
    int8      8 bits per weight and activation, a scale for each output channel and each token
    int8_weight_only  8 bits per weight, fp16 scales for each output channel; activations stay floats
    fp8       int8 in e4m3
    llm_int8  int8 but for the activations beyond 6, which are multiplied as floats
    mxfp4     4-bit floats, a power of two for each 32 weights; emulated: the rounding without its savings (`fp4.py`)
    nvfp4     4-bit floats, an e4m3 scale for each 16 weights; emulated as well

Options beyond these go through config.json's key:
`hf_overrides={"quantization_config": {"quant_method": "online", "scheme": "rtn", "group_size": 32, "lm_head": true}}`.

Source: vLLM model_executor/layers/quantization/online.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from engine.config import ConfigError
from engine.config.model import ONLINE_SCHEMES
from engine.layers.linear import Linear, LinearMethod, UnquantizedLinearMethod
from engine.quant.base import HEAD, UNQUANTIZED, group_size, require, resolved_group
from engine.quant.fp4 import FP4_BLOCKS, quantise_fp4
from engine.quant.matrices import ByteWeight, Int4Weight, OnlineMethod
from engine.quant.rounding import fit_grid
from kernels.ops import quantise_fp8, quantise_int8

DEFAULT_GROUPS = (128, 64, 32)

logger = logging.getLogger(__name__)


def round_to_grid(weight: Tensor, group: int, *, bits: int = 4, symmetric: bool = False) -> Int4Weight:
    grid = fit_grid(weight, group, bits=bits, symmetric=symmetric)
    return Int4Weight.pack(grid.round(weight), grid.scale, grid.zero, bits=bits)


ROUND: dict[str, Callable[[Tensor], Int4Weight | ByteWeight]] = {
    "int8_weight_only": lambda weight: round_to_grid(weight, weight.shape[1], bits=8, symmetric=True),
    "int8": lambda weight: ByteWeight(*quantise_int8(weight)),
    "llm_int8": lambda weight: ByteWeight(*quantise_int8(weight), keeps_outliers=True),
    "fp8": lambda weight: ByteWeight(*quantise_fp8(weight)),
}


class EmulatedFP4(UnquantizedLinearMethod):
    """Round to the nearest number of MXFP4 or NVFP4, and multiply what that stands for in the layer's type.

    Each part of a merged layer is a matrix of its own, with its own scale. With several ranks so is each rank's share.
    """

    def __init__(self, scheme: str) -> None:
        self.scheme = scheme

    def process_weights_after_loading(self, layer: Linear) -> None:
        parts = layer.weight.data.split(list(layer.parts.values()))
        rounded = torch.cat([quantise_fp4(part, self.scheme).restore() for part in parts])
        layer.weight.data = rounded.to(layer.dtype)
        super().process_weights_after_loading(layer)


@cache  # once per process, though a configuration is read more than once
def _say_emulated(scheme: str) -> None:
    logger.warning(
        "quantization=%s is emulated: weights are rounded to the format, then kept and multiplied in the model's type. "
        "It shows the effect on the answers, not the memory or the speed of hardware that multiplies it",
        scheme,
    )


@dataclass(frozen=True)
class OnlineConfig:
    """Target of rounding while loading."""

    scheme: str
    group_size: int | None = None  # Group size of rtn; None chooses one for each layer
    lm_head: bool = False

    @classmethod
    def from_config(cls, raw: dict[str, Any]) -> OnlineConfig:
        known = {"quant_method", "scheme", "group_size", "lm_head"}
        if unknown := sorted(raw.keys() - known):
            raise ConfigError(
                f"quantization_config (online): unknown {', '.join(unknown)}; there are {', '.join(sorted(known))}"
            )
        scheme = require(raw, "scheme", ONLINE_SCHEMES)
        if scheme in FP4_BLOCKS:
            _say_emulated(scheme)
        lm_head = require(raw, "lm_head", (True, False), default=False)
        return cls(scheme, group_size(raw) if "group_size" in raw else None, lm_head)

    def linear_method(self, name: str, layer: Linear) -> LinearMethod:
        if name == HEAD and not self.lm_head:
            return UNQUANTIZED
        columns = layer.in_features
        if self.scheme == "rtn":
            default = next((group for group in DEFAULT_GROUPS if columns % group == 0), columns)
            group = default if self.group_size is None else resolved_group(self.group_size, columns, name)
            return OnlineMethod(partial(round_to_grid, group=group))
        if self.scheme not in FP4_BLOCKS:
            return OnlineMethod(ROUND[self.scheme])
        if columns % (block := FP4_BLOCKS[self.scheme]):
            raise ConfigError(
                f"{name} has {columns} input columns, which {self.scheme}'s blocks of {block} do not "
                "divide; use another scheme, such as rtn"
            )
        return EmulatedFP4(self.scheme)

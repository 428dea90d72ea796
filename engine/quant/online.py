"""A float checkpoint, quantised while it is loaded: `quantization="rtn"`, `"int8"`, `"fp8"` or `"llm_int8"`.

Nothing is calibrated: every matrix is rounded to nearest when its weights are in. The matrices are in memory as floats
until then, so loading takes as much as the float model; running does not.

    rtn       4 bits, groups of 128 (or the largest of 64 and 32 that divides the row, or the row), fp16 scales
    int8      8 bits per weight and activation, a scale for each output channel and each token
    int8_weight_only  8 bits per weight, fp16 scales for each output channel; activations stay floats
    fp8       int8 in e4m3
    llm_int8  int8 but for the activations beyond 6, which are multiplied as floats

Options beyond these go through config.json's key:
`hf_overrides={"quantization_config": {"quant_method": "online", "scheme": "rtn", "group_size": 32, "lm_head": true}}`.

Source: vLLM model_executor/layers/quantization/online.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from engine.config import ConfigError
from engine.config.quantization import ONLINE_SCHEMES
from engine.layers.linear import Linear, LinearMethod, UnquantizedLinearMethod
from engine.quant import int4
from engine.quant.base import HEAD, UNQUANTIZED, group_size, require, resolved_group
from engine.quant.fp8 import FP8LinearMethod, use_fp8
from engine.quant.int4 import Int4Weight
from engine.quant.int8 import Int8LinearMethod, use_int8
from engine.quant.llm_int8 import LLMInt8LinearMethod
from engine.quant.rounding import fit_grid
from kernels.reference.fp8 import quantise_fp8
from kernels.reference.int8 import quantise_int8

DEFAULT_GROUPS = (128, 64, 32)


class _FloatCheckpoint:
    """The float matrix is loaded as it would be without quantisation."""

    def create_weights(self, layer: Linear) -> None:
        UnquantizedLinearMethod().create_weights(layer)

    def take_weight(self, layer: Linear) -> Tensor:
        """The loaded matrix, which the layer holds no longer."""
        weight = layer.weight.data
        del layer.weight
        return weight


class OnlineInt4(_FloatCheckpoint):
    """Round to nearest, 4 bits."""

    def __init__(self, group: int) -> None:
        self.group = group

    def process_weights_after_loading(self, layer: Linear) -> None:
        weight = self.take_weight(layer)
        grid = fit_grid(weight, self.group)
        layer.int4 = [Int4Weight.pack(grid.round(weight), grid.scale, grid.zero)]

    def apply(self, layer: Linear, x: Tensor) -> Tensor:
        return int4.multiply(layer, x)

    def is_recordable(self, layer: Linear) -> bool:
        return int4.is_recordable(layer)


class OnlineInt8WeightOnly(OnlineInt4):
    """Round to nearest, 8 bits per output channel, activations as they are."""

    def process_weights_after_loading(self, layer: Linear) -> None:
        weight = self.take_weight(layer)
        grid = fit_grid(weight, weight.shape[1], bits=8, symmetric=True)
        layer.int4 = [Int4Weight.pack_int8(grid.round(weight), grid.scale, grid.zero)]


class OnlineInt8(_FloatCheckpoint, Int8LinearMethod):
    """Round to nearest, 8 bits per output channel."""

    def process_weights_after_loading(self, layer: Linear) -> None:
        use_int8(layer, *quantise_int8(self.take_weight(layer)))


class OnlineLLMInt8(_FloatCheckpoint, LLMInt8LinearMethod):
    """The same weights; outlying activations stay floats."""

    def process_weights_after_loading(self, layer: Linear) -> None:
        use_int8(layer, *quantise_int8(self.take_weight(layer)))


class OnlineFP8(_FloatCheckpoint, FP8LinearMethod):
    """Round to the nearest e4m3 number, a scale per output channel."""

    def process_weights_after_loading(self, layer: Linear) -> None:
        use_fp8(layer, *quantise_fp8(self.take_weight(layer)))


@dataclass(frozen=True)
class OnlineConfig:
    """What to round to, and whether the output head too."""

    scheme: str
    group_size: int | None = None
    """Of rtn; None: chosen for each layer."""
    lm_head: bool = False

    @classmethod
    def from_config(cls, raw: dict[str, Any]) -> OnlineConfig:
        known = {"quant_method", "scheme", "group_size", "lm_head"}
        if unknown := sorted(raw.keys() - known):
            raise ConfigError(
                f"quantization_config (online): unknown {', '.join(unknown)}; there are {', '.join(sorted(known))}"
            )
        scheme = require(raw, "scheme", ONLINE_SCHEMES)
        lm_head = require(raw, "lm_head", (True, False), default=False)
        return cls(scheme, group_size(raw) if "group_size" in raw else None, lm_head)

    def linear_method(self, name: str, layer: Linear) -> LinearMethod:
        if name == HEAD and not self.lm_head:
            return UNQUANTIZED
        if self.scheme == "rtn":
            return OnlineInt4(self._group(name, layer.in_features))
        if self.scheme == "int8_weight_only":
            return OnlineInt8WeightOnly(layer.in_features)
        return {"int8": OnlineInt8, "fp8": OnlineFP8, "llm_int8": OnlineLLMInt8}[self.scheme]()

    def _group(self, name: str, columns: int) -> int:
        if self.group_size is not None:
            return resolved_group(self.group_size, columns, name)
        return next((group for group in DEFAULT_GROUPS if columns % group == 0), columns)

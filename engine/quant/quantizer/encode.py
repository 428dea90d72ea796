"""Recipe of a quantised checkpoint, and a matrix in the tensors of its public format.

    method        weights                                        activations     written as
    rtn           int4 or int8 by group, rounded to nearest      floats          compressed-tensors, pack-quantized
    gptq          int4 or int8 by group, errors compensated      floats          GPTQ (AutoGPTQ, version 1)
    awq           int4 by group, important channels scaled up    floats          AWQ (AutoAWQ, gemm)
    int8          int8 by output channel                         int8 by token   compressed-tensors, int-quantized
    smoothquant   the same, outliers moved into the weights      int8 by token   compressed-tensors, int-quantized
    fp8           e4m3 by output channel                         e4m3            compressed-tensors, float-quantized

Names as in llm-compressor's schemes: rtn is W4A16 or W8A16, int8 is W8A8, fp8 is FP8_DYNAMIC or FP8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from engine.config import ConfigError
from engine.quant.layouts import AWQLayout, GPTQLayout, PackedLayout
from engine.quant.quantizer.calibration import InputStatistics
from engine.quant.quantizer.methods import gptq_round
from engine.quant.rounding import round_to_nearest
from kernels.ops import FP8_MAX, dequantise_fp8, dequantise_int8, quantise_fp8, quantise_int8

GPTQ_VERSION_1 = 1  # Zero points are stored less one
BITS = {"rtn": (4, 8), "gptq": (4, 8), "awq": (4,), "int8": (8,), "smoothquant": (8,), "fp8": (8,)}
"""The first is the default."""
METHODS = tuple(BITS)


@dataclass(frozen=True)
class Recipe:
    """How to quantise. Make one with `Recipe.create`, which checks that it exists."""

    method: str
    bits: int
    group_size: int = 128  # Columns that share a scale, of rtn, gptq and awq; -1: the whole row
    symmetric: bool = True
    act_order: bool = False  # gptq: columns in the order of their importance
    activations: Literal["dynamic", "static"] = "dynamic"
    """fp8: a scale for each token, or one that calibration finds."""
    alpha: float = 0.5  # smoothquant: how much of the difficulty goes into the weights, 0 to 1

    @classmethod
    def create(
        cls, method: str, *, bits: int | None = None, symmetric: bool | None = None, **options: Any
    ) -> Recipe:
        """A recipe with the method's defaults, or a ConfigError that says what does not go together."""
        if method not in METHODS:
            raise ConfigError(f"no quantisation method {method!r}; there are {', '.join(METHODS)}")
        bits = BITS[method][0] if bits is None else bits
        if bits not in BITS[method]:
            others = [name for name in METHODS if bits in BITS[name]]
            hint = f"methods with {bits} bits: {', '.join(others)}" if others else "there are 4 and 8"
            raise ConfigError(f"{method} has {' or '.join(map(str, BITS[method]))} bits, not {bits}; {hint}")
        if method == "awq" and symmetric:
            raise ConfigError(
                "awq is written with zero points (AutoAWQ's format has them); leave symmetric out"
            )
        recipe = cls(method, bits, symmetric=method != "awq" if symmetric is None else symmetric, **options)
        size, activations = recipe.group_size, recipe.activations
        if size != -1 and (size < 8 or size % 8):
            raise ConfigError(f"group_size must be a multiple of 8, or -1 for the whole row, got {size}")
        if recipe.act_order and method != "gptq":
            raise ConfigError(f"act-order belongs to gptq; {method} has no order of columns")
        if activations not in ("dynamic", "static"):
            raise ConfigError(f"activations must be dynamic or static, got {activations!r}")
        if activations == "static" and method != "fp8":
            raise ConfigError(f"static activation scales belong to fp8, not to {method}")
        if not 0 <= recipe.alpha <= 1:
            raise ConfigError(f"alpha must be from 0 to 1, got {recipe.alpha}")
        return recipe

    @property
    def is_grouped(self) -> bool:
        """Integer weights with a scale for each group, and floating-point activations."""
        return self.method in ("rtn", "gptq", "awq")


class EncodedMatrix(NamedTuple):
    """A matrix as the checkpoint stores it."""

    tensors: dict[str, Tensor]  # Tensors by the last part of their names: qweight, weight_scale, ..
    restored: Tensor  # The matrix [N, K] that the tensors represent, in fp32


def stored_dtype(recipe: Recipe, original: torch.dtype) -> torch.dtype:
    """The type of everything that stays float. Scales of AWQ and GPTQ are fp16, and so are their models."""
    return torch.float16 if recipe.method in ("awq", "gptq") else original


def encode(
    recipe: Recipe, name: str, weight: Tensor, inputs: InputStatistics, original: torch.dtype
) -> EncodedMatrix:
    """Round a matrix [N, K]. Scales behind `awq` and `smoothquant` are folded into it already."""
    weight = weight.detach().float()
    if recipe.method == "fp8":
        return _fp8(recipe, weight, inputs)
    if not recipe.is_grouped:
        steps, scale = quantise_int8(weight)
        return EncodedMatrix({"weight": steps, "weight_scale": scale[:, None]}, dequantise_int8(steps, scale))
    group = group_of(recipe, name, weight.shape)
    options: dict[str, Any] = {"bits": recipe.bits, "symmetric": recipe.symmetric}
    options["scale_dtype"] = stored_dtype(recipe, original)
    if recipe.method == "gptq":
        rounded = gptq_round(weight, inputs.gram, group, act_order=recipe.act_order, **options)
    else:
        rounded = round_to_nearest(weight, group, **options)
    layouts: dict[str, AWQLayout | GPTQLayout | PackedLayout] = {
        "awq": AWQLayout(group),
        "gptq": GPTQLayout(group, GPTQ_VERSION_1, recipe.bits),
        "rtn": PackedLayout(group, recipe.symmetric, bits=recipe.bits),
    }
    return EncodedMatrix(layouts[recipe.method].pack(rounded), rounded.restore())


def _fp8(recipe: Recipe, weight: Tensor, inputs: InputStatistics) -> EncodedMatrix:
    """Dynamic: a scale for each output channel. Static: one for the matrix and one for its inputs, as llm-compressor's
    schemes FP8_DYNAMIC and FP8 have them."""
    if recipe.activations == "dynamic":
        steps, scale = quantise_fp8(weight)
        return EncodedMatrix({"weight": steps, "weight_scale": scale[:, None]}, dequantise_fp8(steps, scale))
    flat, scale = quantise_fp8(weight.reshape(1, -1))
    steps, input_scale = flat.reshape(weight.shape), (inputs.abs_max.max() / FP8_MAX).reshape(1)
    tensors = {"weight": steps, "weight_scale": scale, "input_scale": input_scale}
    return EncodedMatrix(tensors, dequantise_fp8(steps, scale.expand(len(steps))))


def group_of(recipe: Recipe, name: str, shape: tuple[int, ...]) -> int:
    """Columns in a group of this matrix; a ConfigError if they do not come out even, or cannot be packed."""
    rows, columns = shape
    group = columns if recipe.group_size == -1 else recipe.group_size
    if columns % group:
        raise ConfigError(
            f"{name} has {columns} input columns, which groups of {group} do not divide; give a smaller --group, "
            "or -1 for one group over the whole row"
        )
    if rows % 8 or columns % 8:
        raise ConfigError(
            f"{name} is {rows} x {columns}; 4-bit formats pack eights, both must be multiples of 8"
        )
    return group


def quantization_config(recipe: Recipe) -> dict[str, Any]:
    """Return `quantization_config` of config.json as AutoAWQ, AutoGPTQ and compressed-tensors write it."""
    method, group_size = recipe.method, recipe.group_size
    common = {"quant_method": method, "bits": recipe.bits, "group_size": group_size}
    if method == "awq":
        return {**common, "zero_point": True, "version": "gemm", "modules_to_not_convert": ["lm_head"]}
    if method == "gptq":
        order = {"sym": recipe.symmetric, "desc_act": recipe.act_order, "static_groups": False}
        return {**common, **order, "lm_head": False, "checkpoint_format": "gptq"}
    weights: dict[str, Any] = {"num_bits": recipe.bits, "type": "int", "symmetric": True, "dynamic": False}
    activations: dict[str, Any] | None = None
    if recipe.is_grouped:
        file_format = "pack-quantized"
        grouped = {"strategy": "group", "group_size": group_size}
        weights |= grouped if group_size != -1 else {"strategy": "channel"}
        weights["symmetric"] = recipe.symmetric
    else:
        is_static = recipe.activations == "static"
        kind = "float" if method == "fp8" else "int"
        file_format = f"{kind}-quantized"
        weights |= {"type": kind, "strategy": "tensor" if is_static else "channel"}
        activations = {"num_bits": 8, "type": kind, "symmetric": True, "dynamic": not is_static}
        activations["strategy"] = "tensor" if is_static else "token"
    group: dict[str, Any] = {"targets": ["Linear"], "weights": weights}
    group |= {"input_activations": activations, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": file_format,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    }

"""One matrix in the tensors of its public format, and what it then means."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from engine.config import ConfigError
from engine.quant.layouts import AWQLayout, GPTQLayout, PackedLayout
from engine.quant.quantizer.calibration import InputStatistics
from engine.quant.quantizer.methods import gptq_round
from engine.quant.quantizer.recipe import Recipe
from engine.quant.rounding import round_to_nearest
from kernels.ops import FP8_MAX, dequantise_fp8, dequantise_int8, quantise_fp8, quantise_int8

GPTQ_VERSION_1 = 1  # Zero points are stored less one


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

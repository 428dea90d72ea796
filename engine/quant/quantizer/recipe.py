"""Recipe of a quantised checkpoint: method, bits, group size and file format.

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
from typing import Any, Literal

from engine.config import ConfigError

BITS = {"rtn": (4, 8), "gptq": (4, 8), "awq": (4,), "int8": (8,), "smoothquant": (8,), "fp8": (8,)}
"""The first is the default."""
METHODS = tuple(BITS)


@dataclass(frozen=True)
class Recipe:
    """Settings of a quantisation. Make one with `Recipe.create`, which checks that it exists."""

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
            hint = f"; methods with {bits} bits: {', '.join(others)}" if others else ""
            raise ConfigError(f"{method} has {' or '.join(map(str, BITS[method]))} bits, not {bits}{hint}")
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

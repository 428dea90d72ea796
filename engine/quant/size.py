"""Size of a quantised model, from the shapes of its tensors alone.

    4 bits, groups of 128, fp16 scales, 4-bit zero points:   4 + 16 / 128 + 4 / 128 = 4.156 bits per weight

That is the matrices. Embedding, output head and norms stay float in all the formats here and are counted as they are:
with a large vocabulary and a small model they are most of the file. Claims of "a 4-bit model" leave them out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from engine.layers.linear import Linear
from engine.quant.fp4 import FP4_BLOCKS

FLOAT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class ModelSize:
    """Bytes on disk, and what they are."""

    matrix_bytes: int  # Quantised matrices with scales and zero points
    float_bytes: int
    num_matrix_weights: int
    num_weights: int

    @property
    def total_bytes(self) -> int:
        return self.matrix_bytes + self.float_bytes

    @property
    def bits_per_matrix_weight(self) -> float:
        return 8 * self.matrix_bytes / max(1, self.num_matrix_weights)

    @property
    def bits_per_weight(self) -> float:
        """Effective bits: the whole file over all numbers of the model."""
        return 8 * self.total_bytes / self.num_weights


def estimate_size(
    shapes: Mapping[str, tuple[int, ...]],
    method: str,
    *,
    bits: int | None = None,
    group_size: int = 128,
    dtype: str = "bfloat16",
) -> ModelSize:
    """The size of a checkpoint quantised by `method` ("none", or one of `quantizer.recipe.METHODS`,
    or "mxfp4" or "nvfp4": what hardware with these formats would hold).

    shapes: of the float model's tensors by name; bits: the method's own by default; dtype: of what stays float. awq
    and gptq store zero points, rtn does not.
    """
    matrices = floats = num_matrix_weights = num_weights = 0
    for name, shape in shapes.items():
        count = math.prod(shape)
        num_weights += count
        if method != "none" and len(shape) == 2 and name.endswith("_proj.weight"):
            num_matrix_weights += count
            matrices += _matrix_bytes(method, shape[0], shape[1], bits or 4, group_size, FLOAT_BYTES[dtype])
        else:
            floats += count * FLOAT_BYTES[dtype]
    return ModelSize(matrices, floats, num_matrix_weights, num_weights)


def _matrix_bytes(method: str, rows: int, columns: int, bits: int, group_size: int, scale_bytes: int) -> int:
    if method in ("int8", "smoothquant", "fp8"):
        return rows * columns + 4 * rows
    if method in FP4_BLOCKS:
        return rows * columns // 2 + rows * columns // FP4_BLOCKS[method] + 4 * (method == "nvfp4")
    groups = rows * (columns // group_size if group_size != -1 else 1)
    zeros = groups * bits // 8 if method in ("awq", "gptq") else 0
    order = 4 * columns if method == "gptq" else 0
    return rows * columns * bits // 8 + groups * scale_bytes + zeros + order


def weight_bytes(model: nn.Module) -> tuple[int, int]:
    """(bytes of all matrices of a loaded model as they lie in memory, how many weights these hold)."""
    layers = [layer for layer in model.modules() if isinstance(layer, Linear)]
    return sum(map(layer_bytes, layers)), sum(layer.in_features * layer.out_features for layer in layers)


def layer_bytes(layer: Linear) -> int:
    """Bytes of a loaded layer's matrix as it lies in memory, scales and zero points included."""
    return sum(matrix.nbytes for matrix in layer.matrices) or layer.weight.nbytes

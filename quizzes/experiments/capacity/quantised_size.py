"""E04: the size of a quantised model from the shapes of its tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from engine.sim.hardware import get_hardware
from engine.sim.models import get_model
from quizzes.experiments import Context, experiment
from quizzes.experiments.capacity._tensors import tensor_shapes


@dataclass(frozen=True)
class Size:
    """Bytes of the checkpoint; in memory it is the same to within the packing of a few small tensors."""

    total_gb: Annotated[float, "GB"]
    matrix_gb: Annotated[float, "GB"]
    """Quantised matrices with scales and zero points."""
    float_gb: Annotated[float, "GB"]
    """Embedding, output head, norms and biases: they stay in 16 bits."""
    full_gb: Annotated[float, "GB"]
    """The whole model in 16 bits."""
    ratio: Annotated[float, "x"]
    """full_gb / total_gb."""
    ratio_to_fp8: Annotated[float, "x"]
    """The same model in fp8 (8-bit matrices, embedding and head in 16 bits), over total_gb."""
    bits_per_matrix_weight: Annotated[float, "bits"]
    bits_per_weight: Annotated[float, "bits"]
    """Effective: the whole file over all parameters."""
    params_billion: Annotated[float, "1e9"]
    card_gb: Annotated[float, "GB"]
    fits_card: bool
    """The weights alone are smaller than the card's memory."""


@experiment("E04")
def quantised_size(
    ctx: Context,
    *,
    model: str = "llama-3-8b",
    method: Literal["none", "awq", "gptq", "rtn", "int8", "fp8", "mxfp4", "nvfp4"] = "awq",
    group: Literal[-1, 32, 64, 128] = 128,
    gpu: Literal["a10g", "l4", "a100-40", "a100-80", "h100", "h200", "b200"] = "l4",
) -> Size:
    """GB of a dense model quantised by `method`: the engine's planner (`prep zoo size`) on the model's tensors.

    gpu: the card that it is compared with.
    """
    from engine.quant.fp4 import FP4_BLOCKS
    from engine.quant.size import estimate_size

    shapes = tensor_shapes(get_model(model))
    group = FP4_BLOCKS.get(method, group)  # type: ignore[assignment]
    small, full = estimate_size(shapes, method, group_size=group), estimate_size(shapes, "none")
    fp8 = estimate_size(shapes, "fp8")
    card = get_hardware(gpu).memory_bytes / 1e9
    return Size(
        total_gb=small.total_bytes / 1e9,
        matrix_gb=small.matrix_bytes / 1e9,
        float_gb=small.float_bytes / 1e9,
        full_gb=full.total_bytes / 1e9,
        ratio=full.total_bytes / small.total_bytes,
        ratio_to_fp8=fp8.total_bytes / small.total_bytes,
        bits_per_matrix_weight=small.bits_per_matrix_weight if small.num_matrix_weights else 16.0,
        bits_per_weight=small.bits_per_weight,
        params_billion=small.num_weights / 1e9,
        card_gb=card,
        fits_card=small.total_bytes / 1e9 < card,
    )

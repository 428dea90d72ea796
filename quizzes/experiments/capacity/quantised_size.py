from typing import Literal

from engine.sim.hardware import get_hardware
from engine.sim.models import get_model
from quizzes.experiments import Context, Result, experiment
from quizzes.experiments.capacity._tensors import tensor_shapes


@experiment("E04")
def quantised_size(
    ctx: Context,
    model: str = "llama-3-8b",
    method: Literal["none", "awq", "gptq", "rtn", "int8", "fp8", "mxfp4", "nvfp4"] = "awq",
    group: Literal[-1, 32, 64, 128] = 128,
    gpu: Literal["a10g", "l4", "a100-40", "a100-80", "h100", "h200", "b200"] = "l4",
) -> Result:
    """Compute the size of a dense model quantised by `method` from the shapes of its tensors.

    Runs the engine's planner (`prep zoo size`). gpu: the card to compare with.

    Returns:
        Bytes of the checkpoint; in memory it is the same to within the packing of a few small tensors.
        total_gb [GB]
        matrix_gb [GB]: Quantised matrices with scales and zero points.
        float_gb [GB]: Embedding, output head, norms and biases: they stay in 16 bits.
        full_gb [GB]: The whole model in 16 bits.
        ratio [x]: full_gb / total_gb.
        ratio_to_fp8 [x]: The same model in fp8 (8-bit matrices, embedding and head in 16 bits), over total_gb.
        bits_per_matrix_weight [bits]
        bits_per_weight [bits]: Effective: the whole file over all parameters.
        params_billion [1e9]
        card_gb [GB]
        fits_card: The weights alone are smaller than the card's memory.
    """
    from engine.quant.fp4 import FP4_BLOCKS
    from engine.quant.size import estimate_size

    shapes = tensor_shapes(get_model(model))
    group = FP4_BLOCKS.get(method, group)  # type: ignore[assignment]
    small, full = estimate_size(shapes, method, group_size=group), estimate_size(shapes, "none")
    fp8 = estimate_size(shapes, "fp8")
    card = get_hardware(gpu).memory_bytes / 1e9
    return Result(
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

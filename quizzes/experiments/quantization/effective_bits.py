from typing import Literal

from engine.sim.models import get_model
from quizzes.experiments import Result, arg, experiment
from quizzes.experiments.capacity.memory import tensor_shapes


@experiment("E34", "E04")
def effective_bits(
    model: str = "llama-3-8b",
    method: Literal["rtn", "awq", "gptq", "int8", "fp8", "mxfp4", "nvfp4"] = "awq",
    group_size: int = arg(128, 8, 1024, multiple_of=8),
) -> Result:
    """Count the bits per weight of a named dense model with scales, zero points and float tensors included.

    Returns: The shapes of its tensors in `engine/quant/size.py`.
        matrix_bits [bits]: Per weight of the quantised matrices, scales and zero points included.
        file_bits [bits]: Per weight of the whole model: embedding, head and norms stay 16 bits wide.
        file_gb [GB]
        float_gb [GB]: Size of the unquantised model.
        ratio [x]: float_gb over file_gb.
    """
    from engine.quant.size import estimate_size

    shapes = tensor_shapes(get_model(model))
    made, whole = estimate_size(shapes, method, group_size=group_size), estimate_size(shapes, "none")
    return Result(
        matrix_bits=made.bits_per_matrix_weight,
        file_bits=made.bits_per_weight,
        file_gb=made.total_bytes / 1e9,
        float_gb=whole.total_bytes / 1e9,
        ratio=whole.total_bytes / made.total_bytes,
    )

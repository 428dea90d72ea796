from typing import Literal

from engine.sim.models import get_model
from quizzes.experiments import BadArguments, Result, arg, experiment


@experiment("E34", "E04")
def effective_bits(
    model: str = "llama-3-8b",
    method: Literal["rtn", "awq", "gptq", "int8", "fp8", "mxfp4", "nvfp4"] = "awq",
    group_size: int = arg(128, 8, 1024, multiple_of=8),
) -> Result:
    """Count the bits per weight of a named dense model with scales, zero points and float tensors included.

    Uses `engine/quant/size.py` on the shapes of its tensors.

    Returns:
        matrix_bits [bits]: Per weight of the quantised matrices, scales and zero points included.
        file_bits [bits]: Per weight of the whole model: embedding, head and norms stay 16 bits wide.
        file_gb [GB]
        float_gb [GB]: Size of the unquantised model.
        ratio [x]: float_gb over file_gb.
    """
    from engine.quant.size import estimate_size

    shapes = _shapes(model)
    made = estimate_size(shapes, method, group_size=group_size)
    whole = estimate_size(shapes, "none")
    return Result(
        matrix_bits=made.bits_per_matrix_weight,
        file_bits=made.bits_per_weight,
        file_gb=made.total_bytes / 1e9,
        float_gb=whole.total_bytes / 1e9,
        ratio=whole.total_bytes / made.total_bytes,
    )


def _shapes(name: str) -> dict[str, tuple[int, ...]]:
    """Tensors of a dense Llama by name."""
    model = get_model(name)
    if model.moe is not None or model.mla is not None:
        raise BadArguments(f"{name} is a mixture of experts or has latent attention; choose a dense model")
    hidden, q, kv = model.hidden_size, model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (model.vocab_size, hidden)}
    if not model.tie_word_embeddings:
        shapes["lm_head.weight"] = (model.vocab_size, hidden)
    for layer in range(model.num_layers):
        rows = {"q_proj": (q, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden), "o_proj": (hidden, q)}
        rows |= {f"{part}_proj": (model.intermediate_size, hidden) for part in ("gate", "up")}
        rows["down_proj"] = (hidden, model.intermediate_size)
        shapes |= {f"model.layers.{layer}.{part}.weight": shape for part, shape in rows.items()}
        shapes[f"model.layers.{layer}.norms"] = (2 * hidden,)
    shapes["model.norm.weight"] = (hidden,)
    return shapes

"""Sizes of checkpoints and images."""

from typing import Literal

from engine.sim.hardware import get_hardware
from engine.sim.models import ModelShape, get_model
from quizzes.experiments import BadArguments, Result, arg, experiment
from quizzes.experiments.capacity.plans import Gpu


def tensor_shapes(model: ModelShape) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a Hugging Face checkpoint in the Llama layout, without mixtures of experts and MLA."""
    if model.moe is not None or model.mla is not None:
        raise BadArguments(f"{model.name} is not a dense model; choose a Llama, Mistral or Qwen")
    hidden, inner = model.hidden_size, model.intermediate_size
    query, key = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (query, hidden),
        "self_attn.k_proj.weight": (key, hidden),
        "self_attn.v_proj.weight": (key, hidden),
        "self_attn.o_proj.weight": (hidden, query),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    if model.qkv_bias:
        layer |= {f"self_attn.{n}_proj.bias": (s,) for n, s in (("q", query), ("k", key), ("v", key))}
    if model.qk_norm:
        layer |= {f"self_attn.{n}_norm.weight": (model.head_dim,) for n in "qk"}
    shapes = {"model.embed_tokens.weight": (model.vocab_size, hidden), "model.norm.weight": (hidden,)}
    if not model.tie_word_embeddings:
        shapes["lm_head.weight"] = (model.vocab_size, hidden)
    for index in range(model.num_layers):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    return shapes


@experiment("E04")
def quantised_size(
    model: str = "llama-3-8b",
    method: Literal["none", "awq", "gptq", "rtn", "int8", "fp8", "mxfp4", "nvfp4"] = "awq",
    group: Literal[-1, 32, 64, 128] = 128,
    gpu: Gpu = "l4",
) -> Result:
    """Compute the size of a dense model quantised by `method` from the shapes of its tensors.

    Runs the engine's planner (`prep zoo size`). gpu: the card to compare with.

    Returns: Bytes of the checkpoint; in memory it is the same to within the packing of a few small tensors.
        total_gb [GB]
        matrix_gb [GB]: Quantised matrices with scales and zero points.
        float_gb [GB]: Embedding, output head, norms and biases: they stay in 16 bits.
        full_gb [GB]: The whole model in 16 bits.
        ratio [x]: full_gb / total_gb.
        ratio_to_fp8 [x]: The same model in fp8 (8-bit matrices, embedding and head in 16 bits), over total_gb.
        bits_per_matrix_weight [bits]
        bits_per_weight [bits]: Effective: the whole file over all parameters.
        params_billion [1e9]; card_gb [GB]
        fits_card: The weights alone are smaller than the card's memory.
    """
    from engine.quant.fp4 import FP4_BLOCKS
    from engine.quant.size import estimate_size

    shapes = tensor_shapes(get_model(model))
    small = estimate_size(shapes, method, group_size=FP4_BLOCKS.get(method, group))
    full, fp8 = (estimate_size(shapes, other) for other in ("none", "fp8"))
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


@experiment("E04")
def image_size(
    model: str = "llama-3-8b",
    method: Literal["none", "awq", "gptq", "int8", "fp8"] = "awq",
    packages_mb: list[float] = arg(
        [779.1, 731.7, 410.6, 196.0, 176.2, 168.1, 124.2, 121.6, 56.5, 23.7, 21.0, 14.1],
        0,
        1_000_000,
        count=(0, 64),
    ),
) -> Result:
    """Add up a lower bound on a container image with a model in it: quantised weights and compressed packages.

    packages_mb: wheel sizes as pip prints them; the default is PyTorch 2.3.0 for CUDA 12.1 with its libraries (torch,
    cuDNN, cuBLAS, cuSPARSE, NCCL, Triton, cuSOLVER, cuFFT, cuRAND, NVRTC, nvJitLink, CUPTI).

    Returns: Lower bounds: compressed packages as downloaded, without the operating system and your own code.
        model_gb, packages_gb, total_gb [GB]
    """
    weights = quantised_size(model=model, method=method).total_gb
    packages = sum(packages_mb) / 1000
    return Result(model_gb=weights, packages_gb=packages, total_gb=weights + packages)

"""Memory plans of named models on named cards, and sizes of their checkpoints and images."""

from typing import Any, Literal

from common.text import GIB
from engine.sim.hardware import get_hardware
from engine.sim.memory import divide_memory
from engine.sim.models import ModelShape, get_model
from quizzes.experiments import BadArguments, Result, arg, deploy, experiment

Gpu = Literal["a10g", "l4", "a100-40", "a100-80", "h100", "h200", "b200"]
Dtype = Literal["float32", "bfloat16", "float16", "fp8", "int8", "int4"]
KvDtype = Literal["auto", "bfloat16", "fp8", "int8_per_token_head"]
Parallel = Literal[1, 2, 4, 8, 16]


@experiment("E02")
def plan(
    model: str = "llama-3-8b",
    gpu: Gpu = "h100",
    tp: Parallel = 1,
    pp: Parallel = 1,
    dtype: Dtype = "bfloat16",
    kv_dtype: KvDtype = "auto",
    utilisation: float = arg(0.92, above=0, high=1),
    max_model_len: int = arg(8192, 1, 1_000_000),
    max_num_seqs: int = arg(256, 1, 1_000_000),
    max_num_batched_tokens: int = arg(8192, 1, 1_000_000),
) -> Result:
    """Plan the memory of a deployment: weights, runtime, activations, and the KV cache in the rest.

    Returns: Per device unless stated otherwise. Weights, KV and blocks are exact; activations are estimated.
        fits: One sequence of max_model_len has room in the cache.
        usable_gib, weights_gib [GiB]
        weights_gb [GB]: Weights of the whole model.
        runtime_gib, activations_gib [GiB]
        kv_budget_gib [GiB]: Negative: the weights alone are too large.
        kv_budget_total_gb [GB]: KV budget of all devices.
        kv_bytes_per_token [B]
        kv_tokens [tokens]: KV tokens of all sequences.
        max_concurrency [requests]: Sequences of max_model_len at once.
    """
    types: dict[str, Any] = {
        "dtype": dtype,
        "kv_cache_dtype": kv_dtype,
        "gpu_memory_utilization": utilisation,
    }
    limits = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_batched_tokens}
    deployment = deploy(model, gpu, tp=tp, pp=pp, max_model_len=max_model_len, **types, **limits)
    found = divide_memory(deployment)
    return Result(
        fits=found.kv_budget >= 0 and found.num_tokens >= max_model_len,
        usable_gib=found.usable / GIB,
        weights_gib=found.weights / GIB,
        weights_gb=deployment.weight_bytes / 1e9,
        runtime_gib=found.runtime / GIB,
        activations_gib=found.activations / GIB,
        kv_budget_gib=found.kv_budget / GIB,
        kv_budget_total_gb=found.kv_budget * deployment.num_devices / 1e9,
        kv_bytes_per_token=found.kv_bytes_per_token,
        kv_tokens=found.num_tokens,
        max_concurrency=found.max_concurrency,
    )


@experiment("E02", "E35")
def plan_change(
    model: str = "llama-3-8b",
    gpu: Gpu = "h100",
    tp: Parallel = 1,
    dtype: Dtype = "bfloat16",
    kv_dtype: KvDtype = "auto",
    utilisation: float = arg(0.92, above=0, high=1),
    max_num_seqs: int = arg(256, 1, 1_000_000),
    to_gpu: Gpu | None = None,
    to_tp: Parallel | None = None,
    to_dtype: Dtype | None = None,
    to_kv_dtype: KvDtype | None = None,
    to_utilisation: float | None = arg(None, above=0, high=1),
    to_max_num_seqs: int | None = arg(None, 1, 1_000_000),
) -> Result:
    """Compare the memory plans of a deployment before and after a change.

    Returns: Per device unless stated otherwise. The `to_` settings that are given replace the originals.
        weights_ratio [x]: Bytes before over bytes after, of the whole model.
        kv_bytes_ratio [x]: Per token, before over after, all devices.
        kv_tokens_before, kv_tokens_after [tokens]
        kv_tokens_ratio [x]: After over before; 0 if nothing fitted before.
        budget_before_gib, budget_after_gib [GiB]
    """
    now: dict[str, Any] = {
        "model": model,
        "hardware": gpu,
        "tp": tp,
        "dtype": dtype,
        "kv_cache_dtype": kv_dtype,
        "gpu_memory_utilization": utilisation,
        "max_num_seqs": max_num_seqs,
    }
    changes = (None, to_gpu, to_tp, to_dtype, to_kv_dtype, to_utilisation, to_max_num_seqs)
    new = {name: value for name, value in zip(now, changes, strict=True) if value is not None}
    before, after = deploy(**now), deploy(**now | new)
    first, second = divide_memory(before), divide_memory(after)
    return Result(
        weights_ratio=before.weight_bytes / after.weight_bytes,
        kv_bytes_ratio=before.kv_bytes_per_token / after.kv_bytes_per_token,
        kv_tokens_before=first.num_tokens,
        kv_tokens_after=second.num_tokens,
        kv_tokens_ratio=second.num_tokens / first.num_tokens if first.num_tokens else 0.0,
        budget_before_gib=first.kv_budget / GIB,
        budget_after_gib=second.kv_budget / GIB,
    )


@experiment("E03")
def concurrency(
    claimed: int = arg(200, 1, 100_000),
    model: str = "llama-2-7b",
    gpu: Gpu = "a100-40",
    tp: Parallel = 1,
    dtype: Dtype = "bfloat16",
    kv_dtype: KvDtype = "auto",
    utilisation: float = arg(0.92, above=0, high=1),
    lengths: list[int] = arg([512, 1024, 2048], 1, 1_000_000, count=(1, 16)),
) -> Result:
    """Compute how many tokens each of `claimed` requests may have, and how many requests of given lengths fit.

    Returns: Figures of the KV cache of all devices together.
        kv_tokens [tokens]
        tokens_each [tokens]: Tokens per request if the claimed requests share the cache evenly, in whole blocks.
        at_lengths [requests]: Requests at once, by length.
    """
    types: dict[str, Any] = {
        "dtype": dtype,
        "kv_cache_dtype": kv_dtype,
        "gpu_memory_utilization": utilisation,
    }
    deployment = deploy(model, gpu, tp=tp, max_num_seqs=claimed, **types)
    block = deployment.block_size
    blocks = divide_memory(deployment).num_tokens // block
    return Result(
        kv_tokens=blocks * block,
        tokens_each=blocks // claimed * block,
        at_lengths=[blocks // -(-length // block) for length in lengths],
    )


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
    gpu: Literal["a10g", "l4", "a100-40", "a100-80", "h100", "h200", "b200"] = "l4",
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

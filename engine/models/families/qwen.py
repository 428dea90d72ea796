"""Qwen2, Qwen3 and Qwen3 MoE."""

from __future__ import annotations

from typing import Any

from engine.config import ConfigError, ModelConfig
from engine.config.model import ExpertNames
from engine.models.family import Family, Windows, defaults, experts, same_window, windows_by_kind
from engine.models.fields import Fields


def _qwen2(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    """Biases on q, k and v, always, and never on o."""
    return {"attention_bias": True, "sliding_window": _windows(fields, config)}


def _qwen3(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    return {**_norms_and_biases(fields), "sliding_window": _windows(fields, config)}


def _norms_and_biases(fields: Fields) -> dict[str, Any]:
    has_bias = fields.flag("attention_bias")
    return {"qk_norm": True, "attention_bias": has_bias, "attention_output_bias": has_bias}


def _windows(fields: Fields, config: ModelConfig) -> Windows:
    """Return the window of layers that `layer_types` names, or from `max_window_layers` on, if `use_sliding_window`."""
    window, by_kind = fields.optional_count("sliding_window"), windows_by_kind(fields, config)
    is_used = fields.flag("use_sliding_window") and window is not None
    first = fields.optional_count("max_window_layers") or 0
    later = tuple(window if index >= first else None for index in range(config.num_hidden_layers))
    return (by_kind or later) if is_used else (None,) * config.num_hidden_layers


def _qwen3_moe(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    """Experts in every `decoder_sparse_step`-th layer that `mlp_only_layers` does not name; with `use_sliding_window` a
    window in every layer."""
    normalises = fields.flag("norm_topk_prob")
    dense, every = fields.counts("mlp_only_layers"), fields.count("decoder_sparse_step")
    layers = tuple(
        index not in dense and (index + 1) % every == 0 for index in range(config.num_hidden_layers)
    )
    names = ExpertNames("mlp", gate="gate_proj", up="up_proj", down="down_proj")
    moe = experts(fields, names, size="moe_intermediate_size", normalises=normalises, layers=layers)
    window = fields.optional_count("sliding_window")
    windows_by_kind(fields, config)
    is_used = fields.flag("use_sliding_window") and window is not None
    if (first := fields.optional_count("max_window_layers") or 0) and is_used:
        raise ConfigError(
            f"{fields.source}: use_sliding_window with max_window_layers {first} is not supported for "
            f"{config.architecture}: transformers gives every layer the window; set max_window_layers to 0 with "
            "hf_overrides to do that"
        )
    sliding_window = same_window(fields, config, window if is_used else None)
    return {**_norms_and_biases(fields), "moe": moe, "sliding_window": sliding_window}


_READS = ("use_sliding_window", "max_window_layers")

QWEN2 = Family(
    "Qwen2ForCausalLM",
    model_type="qwen2",
    model="engine.models.llama:LlamaForCausalLM",
    reads=_READS,
    defaults=defaults(32768, 32, 4096),
    configure=_qwen2,
    tiny={
        "qwen2": {"tie_word_embeddings": True},
        "qwen2, window from layer 1 on": {
            "use_sliding_window": True,
            "sliding_window": 8,
            "max_window_layers": 1,
        },
    },
    features="biases on q, k and v; windows in some layers",
)
QWEN3 = Family(
    "Qwen3ForCausalLM",
    model_type="qwen3",
    model="engine.models.llama:LlamaForCausalLM",
    reads=(*_READS, "attention_bias"),
    defaults=defaults(32768, 32, 4096, head_dim=128),
    configure=_qwen3,
    tiny={
        "qwen3": {"head_dim": 32, "tie_word_embeddings": True},
        "qwen3, window in layer 1": {
            "head_dim": 16,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 8,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
    },
    features="norms on queries and keys; windows in some layers; biases, if configured",
)
QWEN3_MOE = Family(
    "Qwen3MoeForCausalLM",
    model_type="qwen3_moe",
    model="engine.models.llama:LlamaForCausalLM",
    reads=(
        *_READS, "attention_bias", "num_local_experts", "num_experts", "num_experts_per_tok", "moe_intermediate_size",
        "norm_topk_prob", "mlp_only_layers", "decoder_sparse_step",
    ),
    defaults=defaults(
        32768, 4, 4096, num_experts_per_tok=8, num_local_experts=128, moe_intermediate_size=768, decoder_sparse_step=1,
        norm_topk_prob=False, max_window_layers=None,
    ),
    configure=_qwen3_moe,
    tiny={
        "qwen3 moe": {
            "head_dim": 16,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "mlp_only_layers": [1],
            "norm_topk_prob": True,
        },
    },
    features="as Qwen3, with experts in some layers, and a window in all or none",
)  # fmt: skip

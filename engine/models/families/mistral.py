"""Mistral and Mixtral."""

from __future__ import annotations

from typing import Any

from engine.config import ModelConfig
from engine.config.model import ExpertNames
from engine.models.family import Family, defaults, experts, same_window, windows_by_kind
from engine.models.fields import Fields


def _mistral(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    """The window of every layer, or of those that `layer_types` names (transformers' Ministral)."""
    window = fields.optional_count("sliding_window")
    return {"sliding_window": windows_by_kind(fields, config) or (window,) * config.num_hidden_layers}


def _mixtral(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    names = ExpertNames("block_sparse_moe", gate="w1", up="w3", down="w2")
    layers = (True,) * config.num_hidden_layers
    moe = experts(fields, names, size="intermediate_size", normalises=True, layers=layers)
    return {
        "moe": moe,
        "sliding_window": same_window(fields, config, fields.optional_count("sliding_window")),
    }


MISTRAL = Family(
    "MistralForCausalLM",
    model_type="mistral",
    model="engine.models.llama:LlamaForCausalLM",
    defaults=defaults(131072, 8, 4096),
    configure=_mistral,
    tiny={
        "mistral, window of 8": {"sliding_window": 8, "head_dim": 32},
        "mistral, no window": {"sliding_window": None, "num_key_value_heads": 1},
    },
    features="a window in every layer, or in those of `layer_types`",
)
MIXTRAL = Family(
    "MixtralForCausalLM",
    model_type="mixtral",
    model="engine.models.llama:LlamaForCausalLM",
    reads=("num_local_experts", "num_experts", "num_experts_per_tok"),
    defaults=defaults(
        131072, 8, num_local_experts=8, num_experts_per_tok=2, rms_norm_eps=1e-5, rope_theta=1e6
    ),
    configure=_mixtral,
    tiny={"mixtral": {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 8}},
    features="experts, and a window in every layer",
)

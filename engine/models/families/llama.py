"""Llama 1 to 3, and the EAGLE draft head for it."""

from __future__ import annotations

from typing import Any

from engine.config import ConfigError, ModelConfig
from engine.models.family import Family, defaults, same_window, windows_by_kind
from engine.models.fields import Fields


def _configure(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    has_bias = fields.flag("attention_bias")
    windows_by_kind(fields, config)
    _check_window_is_off(fields)
    return {
        "attention_bias": has_bias,
        "attention_output_bias": has_bias,
        "mlp_bias": fields.flag("mlp_bias"),
        "sliding_window": same_window(fields, config, None),
    }


def _check_window_is_off(fields: Fields) -> None:
    """Raise ConfigError for a Llama with a window: transformers' forward pass ignores it, its cache and vLLM do not."""
    window = fields.optional_count("sliding_window")
    is_off = fields.get("use_sliding_window") is not None and not fields.flag("use_sliding_window")
    if window is not None and not is_off and window < fields.count("max_position_embeddings"):
        raise ConfigError(
            f"{fields.source}: sliding_window {window} is not supported for Llama, whose layers see all tokens; use "
            "a checkpoint of Mistral, or compute without it with hf_overrides={'sliding_window': None}"
        )


_READS = ("attention_bias", "mlp_bias", "use_sliding_window")

LLAMA = Family(
    "LlamaForCausalLM",
    model_type="llama",
    model="engine.models.llama:LlamaForCausalLM",
    reads=_READS,
    defaults=defaults(2048),
    configure=_configure,
    tiny={
        "llama": {},
        "llama, heads of 8": {"head_dim": 8},
        "llama tied": {"tie_word_embeddings": True},
        "llama with biases": {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 6},
    },
    features="biases on all projections, if configured",
)
EAGLE = Family(
    "EagleLlamaForCausalLM",
    model_type="llama",
    model="engine.models.llama:EagleLlamaForCausalLM",
    reads=_READS,
    defaults=defaults(2048),
    configure=_configure,
    tiny="a draft head, which transformers does not have",
    features="an EAGLE draft head for a Llama: layers between its hidden states and its output table",
)

"""The table of config.json's fields: what is read, what is ignored, and configurations as they are on the Hub.

tests/differential/test_config_fields.py compares it with transformers.
"""

from __future__ import annotations

from typing import Any

import pytest

from engine.config import ConfigError
from engine.models.config_fields import HARMLESS, NEUTRAL
from engine.models.families import FAMILIES
from engine.models.family import READ_ALWAYS
from engine.models.fields import Fields
from engine.models.hf_config import parse_config, read_fields
from tests.models.checkpoints import LLAMA

READ_BEFORE = {"architectures", "model_type", "dtype", "torch_dtype", "eos_token_id"}
"""Fields that choose the family, and those that need more than config.json: see `load_model_config`."""
EVERYTHING: dict[str, Any] = {
    **LLAMA,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "decoder_sparse_step": 1,
    "use_sliding_window": True,
    "sliding_window": 64,
}
COMMON = {
    "hidden_act": "silu", "initializer_range": 0.02, "rms_norm_eps": 1e-5, "transformers_version": "4.40.1",
    "use_cache": True, "torch_dtype": "bfloat16", "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
    "tie_word_embeddings": False, "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 32768,
}  # fmt: skip
AS_ON_THE_HUB: dict[str, dict[str, Any]] = {
    "Llama 2": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "_name_or_path": "meta-llama/Llama-2-7b-hf",
        "pretraining_tp": 1, "rope_scaling": None, "attention_bias": False, "max_position_embeddings": 4096,
        "num_key_value_heads": 32, "pad_token_id": 0,
    },
    "Llama 3.1": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "mlp_bias": False, "pretraining_tp": 1,
        "eos_token_id": [128001, 128008, 128009], "vocab_size": 128256, "rope_theta": 500000.0,
        "max_position_embeddings": 131072,
        "rope_scaling": {
            "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "rope_type": "llama3",
            "original_max_position_embeddings": 8192,
        },
    },
    "Llama with linear rope, for remote code": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "_attn_implementation_autoset": True,
        "auto_map": {"AutoModelForCausalLM": "modeling.Llama"}, "rope_scaling": {"factor": 4.0, "type": "linear"},
    },
    "Llama that was a Qwen": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "use_sliding_window": False,
        "sliding_window": 4096, "max_window_layers": 28,
    },
    "Mistral": {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 4096, "head_dim": 128,
        "rope_theta": 10000.0,
    },
    "Mixtral": {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 8,
        "num_experts_per_tok": 2, "output_router_logits": False, "router_aux_loss_coef": 0.02,
        "rope_theta": 1000000.0, "sliding_window": None,
    },
    "Qwen2.5": {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "max_window_layers": 28, "use_mrope": False,
        "sliding_window": 131072, "use_sliding_window": False, "rope_theta": 1000000.0, "vocab_size": 152064,
    },
    "Qwen3": {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False, "head_dim": 128,
        "max_window_layers": 36, "rope_scaling": None, "sliding_window": None, "use_sliding_window": False,
    },
    "Qwen3 MoE": {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "decoder_sparse_step": 1,
        "head_dim": 128, "max_window_layers": 48, "mlp_only_layers": [], "moe_intermediate_size": 768,
        "norm_topk_prob": True, "num_experts": 128, "num_experts_per_tok": 8, "output_router_logits": False,
        "rope_scaling": None, "router_aux_loss_coef": 0.001, "sliding_window": None, "use_sliding_window": False,
        "attention_bias": False, "num_key_value_heads": 4,
    },
    "saved by transformers 5": {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "dtype": "bfloat16", "head_dim": 128,
        "layer_types": ["full_attention"] * 32, "max_window_layers": 28, "sliding_window": None,
        "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}, "use_sliding_window": False,
    },
}  # fmt: skip


@pytest.mark.parametrize("architecture", FAMILIES)
def test_every_field_that_the_table_calls_read_is_read(architecture: str) -> None:
    raw = {**FAMILIES[architecture].defaults, **EVERYTHING, "architectures": [architecture]}
    fields = Fields(raw, "config.json")
    read_fields(fields, architecture)
    assert fields.seen == FAMILIES[architecture].all_reads - READ_BEFORE


def test_no_field_is_in_two_lists_but_those_that_only_some_families_read() -> None:
    some = {"attention_bias", "mlp_bias", "max_window_layers", "use_sliding_window"}
    everywhere = {name for family in FAMILIES.values() for name in family.all_reads}
    assert everywhere & HARMLESS == some
    assert not (HARMLESS | {*READ_ALWAYS}) & NEUTRAL.keys()


@pytest.mark.parametrize("name", AS_ON_THE_HUB)
def test_configurations_as_on_the_hub_load_without_a_warning(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = parse_config({**COMMON, **AS_ON_THE_HUB[name]})
    expected = 4096 if name == "Mistral" else None
    assert config.sliding_window == (expected,) * 32
    assert not caplog.messages


def test_unknown_fields_are_ignored_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    unknown = {f"field_{number}": number for number in range(10)}
    assert parse_config({**LLAMA, **unknown}) == parse_config(LLAMA)
    [message] = caplog.messages
    assert message.startswith("config.json: unknown fields are ignored: field_0, field_1")
    assert message.endswith("field_7 and 2 more")


@pytest.mark.parametrize("name", NEUTRAL)
def test_a_field_of_another_family_loads_with_its_neutral_value_only(name: str) -> None:
    for value in NEUTRAL[name][0]:
        parse_config({**LLAMA, name: value})
    with pytest.raises(
        ConfigError, match=rf"config.json: {name} 0.3 is not supported: .*hf_overrides={{'{name}'"
    ):
        parse_config({**LLAMA, name: 0.3})

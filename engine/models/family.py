"""The entry of a model family: how its config.json is read, which class computes it, and what it is tested with.

`families/` holds the entries. `tests/models/test_families.py` names what an entry lacks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from engine.config import ConfigError, ModelConfig
from engine.config.model import ExpertNames, MoEConfig
from engine.models.fields import Fields
from prep_common.text import counted

READ_ALWAYS = (
    "architectures", "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps", "max_position_embeddings",
    "tie_word_embeddings", "rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor", "sliding_window",
    "original_max_position_embeddings", "layer_types", "quantization_config", "bos_token_id", "eos_token_id", "dtype",
    "torch_dtype",
)  # fmt: skip
"""Fields of config.json that are read for every family."""

Windows = tuple[int | None, ...]


@dataclass(frozen=True)
class Family:
    """A model family. Its module imports no torch, so that a configuration is read without it."""

    architecture: str
    """The name in `architectures`; without ForCausalLM, the prefix of transformers' classes."""
    model_type: str = ""
    """transformers chooses the class by it, vLLM by `architectures`."""
    model: str = ""
    """`module:Class` of the model, a `loader.CausalLM`."""
    reads: tuple[str, ...] = ()
    """Fields that `configure` reads, besides READ_ALWAYS."""
    defaults: dict[str, Any] = field(default_factory=dict)
    """Defaults of its config class in transformers, from `defaults`."""
    configure: Callable[[Fields, ModelConfig], dict[str, Any]] | None = None
    """Return what differs from a Llama without biases and windows: fields of ModelConfig. `extras` is free."""
    tiny: dict[str, dict[str, Any]] | str = ""
    """Random tiny models whose logits must be those of transformers: name -> fields besides the usual shape
    (`tests/differential/test_logits.py`); a sentence if transformers has no such model."""
    features: str = ""
    """Its features in words, for the table in engine/models/README.md."""

    @property
    def all_reads(self) -> frozenset[str]:
        """Every field of config.json that is read."""
        return frozenset((*READ_ALWAYS, *self.reads))


def defaults(
    positions: int, kv_heads: int | None = None, window: int | None = None, **others: Any
) -> dict[str, Any]:
    """Return the defaults that most families share, less those in `others`."""
    return {
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "max_position_embeddings": positions,
        "num_key_value_heads": kv_heads,
        "sliding_window": window,
        "max_window_layers": 28,
        "rope_theta": 1e4,
        **others,
    }


def experts(
    fields: Fields, names: ExpertNames, *, size: str, normalises: bool, layers: tuple[bool, ...]
) -> MoEConfig:
    """Return the experts of a mixture, whose intermediate size is in the field `size`."""
    intermediate = fields.count(size)
    # `num_experts` in older files of Qwen3; transformers 5 reads either name.
    num_experts = fields.count("num_local_experts" if fields.get("num_experts") is None else "num_experts")
    num_chosen = fields.count("num_experts_per_tok")
    if num_chosen > num_experts:
        raise ConfigError(
            f"{fields.source}: num_experts_per_tok ({num_chosen}) is more than {num_experts} experts"
        )
    return MoEConfig(num_experts, num_chosen, intermediate, normalises, layers, names)


def windows_by_kind(fields: Fields, config: ModelConfig) -> Windows:
    """Return the window of every layer as `layer_types` names them; empty if there is no such field."""
    window = fields.optional_count("sliding_window")
    return tuple(window if kind == "sliding_attention" else None for kind in _layer_types(fields, config))


def same_window(fields: Fields, config: ModelConfig, window: int | None) -> Windows:
    """Return this window for every layer. Raises ConfigError if `layer_types` says otherwise."""
    windows, by_kind = (window,) * config.num_hidden_layers, windows_by_kind(fields, config)
    if by_kind and by_kind != windows:
        kinds = sorted(set(_layer_types(fields, config)))
        raise ConfigError(
            f"{fields.source}: layer_types {kinds} is not supported for {config.architecture}, whose layers "
            f"{'all have the window sliding_window' if any(windows) else 'have no window'}; use another checkpoint"
        )
    return windows


def _layer_types(fields: Fields, config: ModelConfig) -> list[str]:
    """Return `layer_types`, checked; empty if there is no such field."""
    kinds = fields.get("layer_types", default=[])
    known = ("full_attention", "sliding_attention")
    if not isinstance(kinds, list) or any(kind not in known for kind in kinds):
        raise fields.error("layer_types", f"a list of {' and '.join(known)}, one for each layer")
    if kinds and len(kinds) != config.num_hidden_layers:
        raise ConfigError(
            f"{fields.source}: layer_types names {counted(len(kinds), 'layer')}, and num_hidden_layers is "
            f"{config.num_hidden_layers}; correct the file or fetch it again"
        )
    if "sliding_attention" in kinds and fields.optional_count("sliding_window") is None:
        raise ConfigError(
            f"{fields.source}: layer_types has sliding_attention, and there is no sliding_window; correct the file"
        )
    return kinds

"""Load the draft model or heads; they must have the target's vocabulary, and their KV must fit into its blocks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from engine.config import ConfigError, MedusaConfig, ModelArgs, ModelConfig, SpeculativeConfig
from engine.layers.attention import Attention
from engine.models.hf_config import find_model, load_model_config
from engine.models.loader import load_model
from engine.models.medusa import load_medusa, load_medusa_config

EAGLE = "EagleLlamaForCausalLM"


def load_draft_config(
    speculative: SpeculativeConfig, target: ModelConfig, args: ModelArgs, max_model_len: int
) -> ModelConfig | MedusaConfig | None:
    """Return the drafter's configuration, checked against the target's; None for methods without a model."""
    if speculative.model is None or not speculative.needs_model:
        return None
    same: dict[str, Any] = {"dtype": target.dtype, "hf_overrides": {}, "quantization": None}
    draft_args = replace(args, model=speculative.model, **same)
    if speculative.method == "medusa":
        heads = load_medusa_config(speculative.model, find_model(draft_args), target)
        _check_heads(heads, target, speculative.num_speculative_tokens)
        return heads
    draft = load_model_config(draft_args)
    _check_kind(speculative, draft, target)
    _check_vocabulary(draft, target)
    _check_shape(draft, target, max_model_len)
    return draft


def refuse_head(model: ModelConfig) -> None:
    """Raise ConfigError for an EAGLE head in place of a model: it cannot run by itself."""
    if model.architecture == EAGLE:
        raise ConfigError(
            f"{model.model} is an EAGLE head, which drafts for another model; load that one, with "
            f'speculative_config={{"method": "eagle", "model": "{model.model}"}}'
        )


def load_draft_model(
    draft: ModelConfig | MedusaConfig, target: ModelConfig, device: torch.device
) -> nn.Module:
    """Load the drafter's weights; number its layers after the target's, as in the cache."""
    if isinstance(draft, MedusaConfig):
        return load_medusa(draft, device)
    model = load_model(draft, device)
    for module in model.modules():
        if isinstance(module, Attention):
            module.layer_index += target.num_hidden_layers
    return model


def _check_kind(speculative: SpeculativeConfig, draft: ModelConfig, target: ModelConfig) -> None:
    is_head = draft.architecture == EAGLE
    if is_head != (speculative.method == "eagle"):
        kind = "an EAGLE head" if is_head else f"a {draft.architecture}"
        other = "eagle" if is_head else "draft_model"
        raise ConfigError(
            f"speculative method {speculative.method!r} does not go with {draft.model}, which is {kind}; "
            f'use "method": "{other}"'
        )
    if is_head and draft.hidden_size != target.hidden_size:
        raise ConfigError(
            f"the EAGLE head {draft.model} reads states of {draft.hidden_size} numbers and {target.model} has "
            f"{target.hidden_size}: it was trained for another model"
        )


def _check_heads(heads: MedusaConfig, target: ModelConfig, num_drafts: int) -> None:
    for what in ("hidden_size", "vocab_size"):
        ours, theirs = getattr(target, what), getattr(heads, what)
        if ours != theirs:
            raise ConfigError(
                f"the Medusa heads {heads.model} have {what} {theirs} and {target.model} has {ours}: they were trained "
                "for another model"
            )
    if num_drafts > heads.num_heads:
        raise ConfigError(
            f"{heads.model} has {heads.num_heads} Medusa heads and each proposes one token: lower "
            f"num_speculative_tokens from {num_drafts} to {heads.num_heads}"
        )


def _check_vocabulary(draft: ModelConfig, target: ModelConfig) -> None:
    ours, theirs = _vocabulary(target.path), _vocabulary(draft.path)
    if draft.vocab_size != target.vocab_size or (ours and theirs and ours != theirs):
        raise ConfigError(
            f"the draft model {draft.model} has another vocabulary than {target.model} ({draft.vocab_size} and "
            f"{target.vocab_size} tokens, not all the same): drafts are token ids and would mean something else. "
            "Use a draft model with the same tokenizer"
        )


def _vocabulary(folder: Path) -> dict[str, int] | None:
    """Return token -> id of tokenizer.json; None if there is none to compare."""
    try:
        content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        added = {token["content"]: token["id"] for token in content.get("added_tokens", ())}
        vocabulary = content["model"]["vocab"]
        return {**vocabulary, **added} if isinstance(vocabulary, dict) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _check_shape(draft: ModelConfig, target: ModelConfig, max_model_len: int) -> None:
    ours, theirs = (f"{config.num_key_value_heads} x {config.head_dim}" for config in (draft, target))
    if ours != theirs:
        raise ConfigError(
            "the drafter's KV lies in the target's blocks, so both need as many kv heads of the same size; "
            f"{draft.model}: {ours}, {target.model}: {theirs}. Use another draft model, or method 'ngram'"
        )
    if draft.max_position_embeddings < max_model_len:
        raise ConfigError(
            f"{draft.model} was made for {draft.max_position_embeddings} positions and max_model_len is "
            f"{max_model_len}; lower max_model_len to {draft.max_position_embeddings}"
        )

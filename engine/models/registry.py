"""Architecture name in config.json -> the class that implements it."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol

import torch
from torch import Tensor, nn

from engine.config import ConfigError, ModelConfig

MODELS: dict[str, str] = {
    "LlamaForCausalLM": "engine.models.llama:LlamaForCausalLM",
    "MistralForCausalLM": "engine.models.llama:LlamaForCausalLM",
    "Qwen2ForCausalLM": "engine.models.llama:LlamaForCausalLM",
    "Qwen3ForCausalLM": "engine.models.llama:LlamaForCausalLM",
}
"""The four differ in biases, head norms, windows and rope only, and ModelConfig says which apply."""


class CausalLM(Protocol):
    """What the worker needs of a model. Between the two calls it picks the rows that need logits."""

    def __call__(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """input_ids, positions int64 [T] -> hidden [T, hidden]. Reads the current ForwardContext."""
        ...

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """hidden [S, hidden] -> logits fp32 [S, vocab]."""
        ...


def create_model(config: ModelConfig, device: torch.device | str) -> nn.Module:
    """The model with storage for its weights, not yet filled (see `loader.load_model`)."""
    if config.architecture not in MODELS:
        raise ConfigError(f"unsupported architecture {config.architecture!r}; supported: {', '.join(MODELS)}")
    module_name, class_name = MODELS[config.architecture].split(":")
    with torch.device(device):
        return getattr(import_module(module_name), class_name)(config)

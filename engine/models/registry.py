"""Architecture name in config.json -> the class that implements it."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from common.dotted_path import load_object
from engine.config import ConfigError, ModelConfig
from engine.layers.linear import Linear
from engine.parallel import ALONE, Ranks, use_ranks
from engine.quant.base import parse_quantization

MODELS: dict[str, str] = {
    "LlamaForCausalLM": "engine.models.llama:LlamaForCausalLM",
    "MistralForCausalLM": "engine.models.llama:LlamaForCausalLM",
    "Qwen2ForCausalLM": "engine.models.llama:LlamaForCausalLM",
    "Qwen3ForCausalLM": "engine.models.llama:LlamaForCausalLM",
    "MixtralForCausalLM": "engine.models.llama:LlamaForCausalLM",
    "Qwen3MoeForCausalLM": "engine.models.llama:LlamaForCausalLM",
    "EagleLlamaForCausalLM": "engine.models.llama:EagleLlamaForCausalLM",
}
"""They differ in biases, head norms, windows, rope and experts only, and ModelConfig says which apply."""


class CausalLM(Protocol):
    """Interface of a model for the worker, which picks the rows that need logits between the two calls."""

    def __call__(
        self, input_ids: Tensor, positions: Tensor, inputs_embeds: Tensor | None = None
    ) -> Tensor | None:
        """input_ids, positions int64 [T] -> hidden [T, hidden]; None in any pipeline stage but the last.
        Reads the current ForwardContext, writes the step's KV.

        inputs_embeds [T, hidden], if given, takes the place of the token embeddings.
        """
        ...

    def embed_tokens(self, input_ids: Tensor) -> Tensor:
        """ids [T] -> their embeddings [T, hidden]; in the first pipeline stage."""
        ...

    def compute_logits(self, hidden: Tensor) -> Tensor | None:
        """hidden [S, hidden] -> logits fp32 [S, vocab]; None on any tensor rank but the first."""
        ...


def create_model(config: ModelConfig, device: torch.device | str, ranks: Ranks = ALONE) -> nn.Module:
    """The model, or what `ranks` has of it, with storage for weights not yet filled (see `loader.load_model`)."""
    if config.architecture not in MODELS:
        raise ConfigError(f"unsupported architecture {config.architecture!r}; supported: {', '.join(MODELS)}")
    quantization = None if config.quantization is None else parse_quantization(config.quantization)
    with torch.device(device), use_ranks(ranks):
        model = load_object(MODELS[config.architecture])(config)
        for name, module in model.named_modules():
            if isinstance(module, Linear):
                if quantization is not None:
                    module.method = quantization.linear_method(name, module)
                module.create_weights()  # in the checkpoint's layout
    return model

"""An EAGLE head in the Llama family: one decoder layer between another model's hidden states and its output table.

    embedding of the next token -> embed_proj  \\
                                                + -> layer -> norm -> a guess of the next hidden state
    hidden state -> hidden_norm -> hidden_proj /

Sources: EAGLE, Li et al. 2024; vLLM model_executor/models/llama_eagle.py. As in EAGLE-3 (Li et al. 2025) there are
norms in front and behind. The two projections are the halves of the paper's `fc`, which reads both behind each
other: apart they need no copy of their inputs, and their sum is taken by the layer's first norm.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.config import ModelConfig
from engine.layers.linear import Linear
from engine.layers.norm import RMSNorm
from engine.layers.rope import RotaryTable
from engine.models.llama import LlamaDecoderLayer


class EagleLlamaForCausalLM(nn.Module):
    """Call it inside `set_forward_context`. Embedding and output table are the target's."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        dtype, size = getattr(torch, config.dtype), config.hidden_size
        self.config = config
        self.hidden_norm = RMSNorm(size, config.rms_norm_eps, dtype=dtype)
        self.embed_proj = Linear(size, size, bias=False, dtype=dtype)
        self.hidden_proj = Linear(size, size, bias=False, dtype=dtype)
        self.layers = nn.ModuleDict(
            {str(index): LlamaDecoderLayer(config, index, dtype) for index in range(config.num_hidden_layers)}
        )
        self.norm = RMSNorm(size, config.rms_norm_eps, dtype=dtype)
        self.rotary = RotaryTable(config.rope, config.head_dim, config.max_position_embeddings)

    def forward(self, embedded: Tensor, hidden: Tensor, positions: Tensor) -> Tensor:
        """embedded, hidden [T, hidden], positions int64 [T] -> the next states [T, hidden]; writes the head's KV."""
        hidden, residual = self.embed_proj(embedded), self.hidden_proj(self.hidden_norm(hidden))
        cos, sin = self.rotary(positions)
        for layer in self.layers.values():
            hidden, residual = layer(hidden, residual, cos, sin)
        hidden, _ = self.norm.add_and_norm(hidden, residual)
        return hidden

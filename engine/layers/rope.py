"""Rotary position embedding: which angle each dimension turns by, and the scaling rules of long contexts.

Dimension pair i of a head turns by position * inv_freq[i], with inv_freq[i] = theta ** (-2 i / head_dim):
fast for small i, hardly at all for large i. A checkpoint trained on short texts is stretched to longer ones by
slowing pairs down; the rule is named in its config as `rope_type`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from engine.config import ConfigError, RopeConfig
from kernels import ops

SUPPORTED_ROPE_TYPES = ("default", "linear", "llama3")


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """fp32 [head_dim / 2]: radians per position of every dimension pair."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    inv_freq = 1.0 / rope.theta**exponents
    scaling = rope.scaling or {"rope_type": "default"}
    match scaling["rope_type"]:
        case "default":
            return inv_freq
        case "linear":
            return inv_freq / scaling["factor"]
        case "llama3":
            return _llama3(inv_freq, scaling)
        case other:
            raise ConfigError(
                f"unsupported rope_type {other!r}; supported: {', '.join(SUPPORTED_ROPE_TYPES)}"
            )


def _llama3(inv_freq: Tensor, scaling: dict[str, Any]) -> Tensor:
    """Llama 3.1's rule: slow pairs are divided by `factor`, fast ones kept, those between blended.

    "Slow" is measured in turns over the context length of pre-training: below `low_freq_factor` turns
    a pair never saw its whole range, above `high_freq_factor` it saw it many times.
    Source: transformers modeling_rope_utils.py, Meta's llama-models `apply_scaling`.
    """
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * inv_freq / (2 * math.pi)
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return keep * inv_freq + (1 - keep) * inv_freq / scaling["factor"]


class RotaryTable(nn.Module):
    """cos and sin of every position the model may see, computed once.

    A table and not cos() of each step's positions: vectorised cos() rounds by where in memory a value
    falls, and a token's result must not depend on its neighbours in the batch.
    """

    def __init__(self, rope: RopeConfig, head_dim: int, max_position: int) -> None:
        super().__init__()
        inv_freq = inverse_frequencies(rope, head_dim)
        angles = torch.outer(torch.arange(max_position, dtype=torch.float32), inv_freq)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions int64 [T] -> (cos, sin), each fp32 [T, head_dim / 2]."""
        return ops.embedding(self.cos, positions), ops.embedding(self.sin, positions)

"""Rotary position embedding: which angle each dimension turns by, and the scaling rules of long contexts.

Dimension pair i of a head turns by position * inv_freq[i], with inv_freq[i] = theta ** (-2 i / head_dim):
fast for small i, slowly for large i. A checkpoint trained on short texts is stretched to longer ones by
slowing pairs down; its config names the rule as `rope_type` (`engine/models/rope_config.py`). Some rules also scale
cos and sin, and so all attention scores, by an attention factor.

Sources: transformers modeling_rope_utils.py; Llama 3.1 (Meta's llama-models `apply_scaling`), YaRN (Peng et al. 2023),
LongRoPE (Ding et al. 2024).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from engine.config import ConfigError, RopeConfig
from kernels import ops


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Return the radians per position of every dimension pair, fp32 [head_dim / 2]."""
    scaling = rope.scaling or {"rope_type": "default"}
    inv_freq = _plain(rope.theta, head_dim)
    match scaling["rope_type"]:
        case "default":
            return inv_freq
        case "linear":
            return inv_freq / scaling["factor"]
        case "llama3":
            return _llama3(inv_freq, scaling)
        case "yarn":
            return _yarn(inv_freq, rope.theta, scaling)
        case "dynamic":  # a larger base for the served length, which slows the slowest pair by about `factor`
            original, factor = scaling["original_max_position_embeddings"], scaling["factor"]
            growth = factor * scaling.get("served_length", original) / original - (factor - 1)
            return _plain(rope.theta * growth ** (head_dim / (head_dim - 2)), head_dim)
        case "longrope":
            factors = scaling["long_factor" if scaling["is_long"] else "short_factor"]
            return inv_freq / torch.tensor(factors, dtype=torch.float32)
        case other:
            raise ConfigError(f"unsupported rope_type {other!r}")


def attention_factor(rope: RopeConfig) -> float:
    """Return the factor of cos and sin: 1 but for yarn and longrope."""
    scaling = rope.scaling or {"rope_type": "default"}
    if (given := scaling.get("attention_factor")) is not None:
        return given
    factor = scaling.get("factor", 1.0)
    if factor <= 1:
        return 1.0
    match scaling["rope_type"]:
        case "yarn":
            mscale, over = scaling.get("mscale"), scaling.get("mscale_all_dim")
            if not (mscale and over):
                mscale, over = 1.0, 0.0
            return (0.1 * mscale * math.log(factor) + 1) / (0.1 * over * math.log(factor) + 1)
        case "longrope":
            return math.sqrt(1 + math.log(factor) / math.log(scaling["original_max_position_embeddings"]))
    return 1.0


def _plain(theta: float, head_dim: int) -> Tensor:
    return 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)


def _llama3(inv_freq: Tensor, scaling: dict[str, Any]) -> Tensor:
    """Divide slow pairs by `factor`, keep fast ones, blend those between.

    "Slow" is measured in turns over the context length of pre-training: below `low_freq_factor` turns
    a pair never saw its whole range, above `high_freq_factor` it saw it many times.
    """
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * inv_freq / (2 * math.pi)
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return keep * inv_freq + (1 - keep) * inv_freq / scaling["factor"]


def _yarn(inv_freq: Tensor, theta: float, scaling: dict[str, Any]) -> Tensor:
    """Divide slow pairs by `factor`, keep fast ones, blend linearly in the pair's number between.

    Pair i makes n turns over the original context where i = dim log(original / (2 pi n)) / (2 log theta): pairs up to
    the one of `beta_fast` turns are kept, pairs from the one of `beta_slow` on divided.
    """
    dim = 2 * len(inv_freq)

    def pair_of(turns: float) -> float:
        original = scaling["original_max_position_embeddings"]
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first, last = pair_of(scaling.get("beta_fast") or 32), pair_of(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    width = last - first or 0.001  # as transformers does where both are the same pair
    divide = ((torch.arange(dim // 2, dtype=torch.float32) - first) / width).clamp(0, 1)
    return (1 - divide) * inv_freq + divide * inv_freq / scaling["factor"]


class RotaryTable(nn.Module):
    """cos and sin of every position the model may see, computed once.

    A table and not cos() of each step's positions: vectorised cos() rounds by where in memory a value
    falls, and a token's result must not depend on its neighbours in the batch.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, rope: RopeConfig, head_dim: int, max_position: int) -> None:
        super().__init__()
        if (
            torch.get_default_device().type == "meta"
        ):  # shapes only; arithmetic there imports torch's compiler
            self.register_buffer("cos", torch.empty(max_position, head_dim // 2), persistent=False)
            self.register_buffer("sin", torch.empty(max_position, head_dim // 2), persistent=False)
            return
        inv_freq = inverse_frequencies(rope, head_dim)
        angles = torch.outer(torch.arange(max_position, dtype=torch.float32), inv_freq)
        factor = attention_factor(rope)
        self.register_buffer("cos", angles.cos() * factor, persistent=False)
        self.register_buffer("sin", angles.sin() * factor, persistent=False)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions int64 [T] -> (cos, sin), each fp32 [T, head_dim / 2]."""
        return ops.embedding(self.cos, positions), ops.embedding(self.sin, positions)

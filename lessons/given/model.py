"""The shipped model in plain torch: no cache, no batch, one function per layer.

    model = PlainModel.load("shop")
    model([5, 17, 9])                       logits of every position, fp32 [3, vocab]
    model([9], cache=cache, start=2)        one new token; keys and values of the others come from the cache

A cache is any object with `append(layer, key, value) -> (keys, values)` (lesson 02).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import linear, silu

from engine.zoo.registry import resolve

Attend = Callable[[Tensor, Tensor, Tensor, int], Tensor]


class PlainModel:
    """A Llama checkpoint and its forward pass."""

    def __init__(self, config: dict[str, Any], weights: dict[str, Tensor]) -> None:
        self.config = config
        self.weights = weights
        self.num_layers: int = config["num_hidden_layers"]
        self.num_heads: int = config["num_attention_heads"]
        self.num_kv_heads: int = config["num_key_value_heads"]
        self.head_dim: int = config["head_dim"]
        self.num_tokens_computed = 0
        """Tokens that went through the layers since the model was loaded."""

    @classmethod
    def load(cls, name: str = "shop") -> Self:
        """Load a shipped model in fp32. Raises FileNotFoundError for an unknown name."""
        folder = resolve(name)
        weights = load_file(folder / "model.safetensors")
        return cls(
            json.loads((folder / "config.json").read_text()), {key: w.float() for key, w in weights.items()}
        )

    @torch.inference_mode()
    def __call__(
        self,
        ids: Sequence[int],
        *,
        cache: Any = None,
        start: int = 0,
        attend: Attend | None = None,
        positions: Sequence[int] | None = None,
    ) -> Tensor:
        """Return logits, fp32 [len(ids), vocab].

        ids: tokens at positions start, start + 1, ...; attend: replaces `causal_attention`; positions: of each token,
        for rotary embeddings, if the ids are not one sequence.
        """
        self.num_tokens_computed += len(ids)
        w = self.weights
        hidden = w["model.embed_tokens.weight"][torch.tensor(ids)]
        cos, sin = self._angles(range(start, start + len(ids)) if positions is None else positions)
        for layer in range(self.num_layers):
            name = f"model.layers.{layer}."
            x = self._norm(hidden, name + "input_layernorm.weight")
            query, key, value = (
                linear(x, w[f"{name}self_attn.{part}_proj.weight"]).unflatten(1, (-1, self.head_dim))
                for part in "qkv"
            )
            query, key = _rotate(query, cos, sin), _rotate(key, cos, sin)
            if cache is not None:
                key, value = cache.append(layer, key, value)
            mixed = (attend or causal_attention)(query, key, value, start)
            hidden = hidden + linear(mixed.flatten(1), w[name + "self_attn.o_proj.weight"])
            x = self._norm(hidden, name + "post_attention_layernorm.weight")
            gate, up = (linear(x, w[f"{name}mlp.{part}_proj.weight"]) for part in ("gate", "up"))
            hidden = hidden + linear(silu(gate) * up, w[name + "mlp.down_proj.weight"])
        return linear(self._norm(hidden, "model.norm.weight"), w["model.embed_tokens.weight"])

    def _norm(self, x: Tensor, name: str) -> Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return x * scale * self.weights[name]

    def _angles(self, positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        powers = torch.arange(0, self.head_dim, 2) / self.head_dim
        angles = torch.outer(
            torch.tensor(positions, dtype=torch.float32), self.config["rope_theta"] ** -powers
        )
        return angles.cos(), angles.sin()


def causal_attention(query: Tensor, key: Tensor, value: Tensor, start: int) -> Tensor:
    """Return attention of query [n, heads, dim] over key, value [start + n, kv_heads, dim]; shape of the query.

    Query i stands at position start + i and sees positions up to its own.
    """
    group = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(group, dim=1) for tensor in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, key) / query.shape[2] ** 0.5
    future = torch.arange(key.shape[0]) > torch.arange(start, start + len(query))[:, None]
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(future, -torch.inf).softmax(-1), value)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)

"""A Llama in plain torch, for training and checks, with Hugging Face's weight names.

Sequences are padded on the right and attention is causal, so no mask is needed: no real token attends to padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .tokenizer import VOCAB_SIZE

KeyValues = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a model, named as in Hugging Face's config.json."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int = 32
    vocab_size: int = VOCAB_SIZE
    max_position_embeddings: int = 2048
    rope_theta: float = 500000.0  # most pairs rotate slowly: heads of 32 dimensions need it to compare tokens
    rms_norm_eps: float = 1e-5


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


def rope_tables(config: ModelConfig, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return cos and sin of every angle, [positions, head_dim]; both halves of a head share their angles."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    angles = positions.float()[:, None] * config.rope_theta**-exponents
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each pair (x[i], x[i + half]) by its angle: the half-split convention of the Hugging Face weights."""
    low, high = x.chunk(2, dim=-1)
    return x * cos.to(x.dtype) + torch.cat([-high, low], dim=-1) * sin.to(x.dtype)


def split_heads(x: Tensor, count: int) -> Tensor:
    """Return [batch, length, count * head_dim] as [batch, count, length, head_dim]."""
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


class Attention(nn.Module):
    """Grouped-query attention: each key/value head serves several query heads."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        query_size, kv_size = self.heads * config.head_dim, self.kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, query_size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(query_size, config.hidden_size, bias=False)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        query = rotate(split_heads(self.q_proj(x), self.heads), cos, sin)
        key = rotate(split_heads(self.k_proj(x), self.kv_heads), cos, sin)
        value = split_heads(self.v_proj(x), self.kv_heads)
        if past is not None:
            key, value = torch.cat([past[0], key], dim=2), torch.cat([past[1], value], dim=2)
        group = self.heads // self.kv_heads
        mixed = F.scaled_dot_product_attention(
            query,
            key.repeat_interleave(group, 1),
            value.repeat_interleave(group, 1),
            is_causal=x.shape[1] > 1,
        )
        return self.o_proj(mixed.transpose(1, 2).flatten(2)), (key, value)


class MLP(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        mixed, present = self.self_attn(self.input_layernorm(x), cos, sin, past)
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), present


class Decoder(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class ShopModel(nn.Module):
    """The language model; the output layer is the embedding table (tied)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config, self.model = config, Decoder(config)

    def hidden(self, tokens: Tensor, past: KeyValues | None = None) -> tuple[Tensor, KeyValues]:
        """Return the final hidden states of [batch, length] tokens, and all keys and values so far."""
        start = past[0][0].shape[2] if past else 0
        cos, sin = rope_tables(self.config, torch.arange(start, start + tokens.shape[1]))
        x = self.model.embed_tokens(tokens).to(self.model.norm.weight.dtype)
        present: KeyValues = []
        for index, layer in enumerate(self.model.layers):
            x, pair = layer(x, cos, sin, past[index] if past else None)
            present.append(pair)
        return self.model.norm(x), present

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.model.embed_tokens.weight.to(hidden.dtype))

    @torch.inference_mode()
    def generate(self, prompt: list[int], max_new_tokens: int, eos: int) -> list[int]:
        """Return the greedy continuation of one prompt, without the end-of-turn token."""
        hidden, past = self.hidden(torch.tensor([prompt]))
        output: list[int] = []
        while len(output) < max_new_tokens:
            token = int(self.logits(hidden[:, -1]).argmax())
            if token == eos:
                break
            output.append(token)
            hidden, past = self.hidden(torch.tensor([[token]]), past)
        return output

"""Tensors of a named model's checkpoint, by name and shape."""

from __future__ import annotations

from engine.sim.models import ModelShape
from quizzes.experiments.registry import BadArguments


def tensor_shapes(model: ModelShape) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a Hugging Face checkpoint in the Llama layout, without mixtures of experts and MLA."""
    if model.moe is not None or model.mla is not None:
        raise BadArguments(f"{model.name} is not a dense model; choose a Llama, Mistral or Qwen")
    hidden, inner = model.hidden_size, model.intermediate_size
    query, key = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (model.vocab_size, hidden)}
    for index in range(model.num_layers):
        layer = f"model.layers.{index}"
        rows = {
            "self_attn.q_proj": (query, hidden),
            "self_attn.k_proj": (key, hidden),
            "self_attn.v_proj": (key, hidden),
            "self_attn.o_proj": (hidden, query),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        shapes |= {f"{layer}.{name}.weight": shape for name, shape in rows.items()}
        if model.qkv_bias:
            shapes |= {
                f"{layer}.self_attn.{n}_proj.bias": (s,) for n, s in (("q", query), ("k", key), ("v", key))
            }
        if model.qk_norm:
            shapes |= {f"{layer}.self_attn.{n}_norm.weight": (model.head_dim,) for n in "qk"}
        shapes |= {f"{layer}.{n}_layernorm.weight": (hidden,) for n in ("input", "post_attention")}
    shapes["model.norm.weight"] = (hidden,)
    if not model.tie_word_embeddings:
        shapes["lm_head.weight"] = (model.vocab_size, hidden)
    return shapes

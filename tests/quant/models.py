"""A tiny Llama in the zoo's layout, with outlying channels as trained models have them, and its folder."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.zoo.export import hf_config
from engine.zoo.model import ModelConfig, ShopModel

CONFIG = ModelConfig(128, 256, 2, 4, 2, head_dim=32, vocab_size=96, max_position_embeddings=128)


def tiny_model(seed: int = 0) -> ShopModel:
    """Random weights whose activations differ in size from channel to channel."""
    torch.manual_seed(seed)
    model = ShopModel(CONFIG).eval().requires_grad_(False)
    for layer in model.model.layers:
        for norm in (layer.input_layernorm, layer.post_attention_layernorm):
            norm.weight.copy_((torch.randn(CONFIG.hidden_size) * 0.8).exp().bfloat16())
        for matrix in (layer.self_attn.o_proj, layer.mlp.down_proj):
            matrix.weight *= 4
    model.model.embed_tokens.weight *= 0.2  # or the model only repeats what it was told last
    for weight in model.parameters():
        weight.copy_(weight.bfloat16())
    return model


def tiny_folder(folder: Path, model: ShopModel | None = None) -> Path:
    """The tiny model as a Hugging Face folder in bfloat16, without a tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = (model or tiny_model()).state_dict()
    save_file({name: weight.bfloat16() for name, weight in weights.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(hf_config(CONFIG, eos=1, pad=0)))
    return folder


def samples(count: int = 8, length: int = 48, seed: int = 1) -> list[Tensor]:
    """Token ids to calibrate with."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, CONFIG.vocab_size, (1, length), generator=generator) for _ in range(count)]

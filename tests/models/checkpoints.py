"""Small checkpoints for the tests, written without transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.config import EngineArgs, ModelConfig
from engine.models.hf_config import load_model_config
from engine.models.loader import checkpoint_tensors, create_model

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rope_theta": 10000.0,
    "eos_token_id": 2,
}


def write_config(folder: Path, **changes: Any) -> Path:
    """config.json of a tiny Llama with changes; a value of None leaves the key out."""
    config = {key: value for key, value in {**LLAMA, **changes}.items() if value is not None}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def read_config(folder: Path, **args: Any) -> ModelConfig:
    return load_model_config(EngineArgs(model=str(folder), **{"device": "cpu", **args}))


def random_weights(folder: Path, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Return random weights for the config in `folder`, by the names of the checkpoint format."""
    generator = torch.Generator().manual_seed(0)
    targets = checkpoint_tensors(create_model(read_config(folder, load_format="dummy"), "cpu"))
    return {
        name: torch.randn(target.shape, generator=generator).to(dtype) for name, target in targets.items()
    }


def write_checkpoint(
    folder: Path, *, num_shards: int = 1, dtype: torch.dtype = torch.float32, **changes: Any
) -> Path:
    """A tiny Llama in one file, or in shards with an index."""
    write_config(folder, **changes)
    weights = random_weights(folder, dtype)
    if num_shards == 1:
        save_file(weights, folder / "model.safetensors")
        return folder
    weight_map = {}
    for shard in range(num_shards):
        name = f"model-{shard + 1:05}-of-{num_shards:05}.safetensors"
        part = dict(list(weights.items())[shard::num_shards])
        save_file(part, folder / name)
        weight_map.update(dict.fromkeys(part, name))
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )
    return folder

"""Write a model as a Hugging Face folder, atomically: a reader sees the old folder or the new one."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from .model import ModelConfig, ShopModel
from .tokenizer import CHAT_TEMPLATE, END_OF_TEXT, TURN_END, token_id, tokenizer_config


def hf_config(config: ModelConfig, eos: int, pad: int) -> dict[str, Any]:
    """Return config.json in the form of transformers and vLLM."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **asdict(config),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "bos_token_id": None,
        "eos_token_id": eos,
        "pad_token_id": pad,
        "torch_dtype": "bfloat16",
        "use_cache": True,
    }


def export_model(folder: Path, config: ModelConfig, weights: dict[str, Tensor], tokenizer: Tokenizer) -> Path:
    """Replace `folder` by this model in bfloat16."""
    eos, pad = token_id(tokenizer, TURN_END), token_id(tokenizer, END_OF_TEXT)
    files: dict[str, Any] = {
        "config.json": hf_config(config, eos, pad),
        "generation_config.json": {"do_sample": False, "eos_token_id": [eos, pad], "pad_token_id": pad},
        "tokenizer_config.json": tokenizer_config(config.max_position_embeddings),
        "chat_template.jinja": CHAT_TEMPLATE + "\n",
        "tokenizer.json": tokenizer.to_str(pretty=True),
    }
    return replace_folder(folder, files, weights)


def replace_folder(
    folder: Path,
    files: dict[str, Any],
    weights: dict[str, Tensor],
    weights_name: str = "model.safetensors",
) -> Path:
    """Replace `folder` by files (a text, or an object to write as JSON) and weights, which become bfloat16."""
    fresh, old = (folder.with_name(f".{folder.name}.{os.getpid()}.{age}") for age in ("new", "old"))
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    for name, content in files.items():
        if not isinstance(content, str):
            content = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        (fresh / name).write_text(content, encoding="utf-8")
    halves = {name: weight.detach().to(torch.bfloat16).contiguous() for name, weight in weights.items()}
    save_file(halves, str(fresh / weights_name), metadata={"format": "pt"})
    (fresh / weights_name).chmod(0o644)  # safetensors makes the file readable by its owner only
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
    return folder


def load_model(folder: Path, dtype: torch.dtype = torch.float32) -> ShopModel:
    """Read a folder written by `export_model`."""
    fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = ModelConfig(**{name: fields[name] for name in ModelConfig.__dataclass_fields__})
    model = ShopModel(config)
    model.load_state_dict(load_file(str(folder / "model.safetensors")))
    return model.to(dtype).eval()

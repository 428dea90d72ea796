"""Write a model as a Hugging Face folder, atomically: a reader sees the old folder or the new one."""

from __future__ import annotations

import json
import os
import shutil
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
        **config.as_dict(),
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
    files = {
        "config.json": hf_config(config, eos, pad),
        "generation_config.json": {"do_sample": False, "eos_token_id": [eos, pad], "pad_token_id": pad},
        "tokenizer_config.json": tokenizer_config(config.max_position_embeddings),
    }
    fresh = folder.with_name(f".{folder.name}.{os.getpid()}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    for name, content in files.items():
        (fresh / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (fresh / "chat_template.jinja").write_text(CHAT_TEMPLATE + "\n", encoding="utf-8")
    tokenizer.save(str(fresh / "tokenizer.json"))
    halves = {name: weight.to(torch.bfloat16).contiguous() for name, weight in weights.items()}
    save_file(halves, str(fresh / "model.safetensors"), metadata={"format": "pt"})
    (fresh / "model.safetensors").chmod(0o644)  # safetensors makes the file readable by its owner only
    if folder.exists():
        old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
        folder.rename(old)
        fresh.rename(folder)
        shutil.rmtree(old)
    else:
        fresh.rename(folder)
    return folder


def load_model(folder: Path, dtype: torch.dtype = torch.float32) -> ShopModel:
    """Read a folder written by `export_model`."""
    fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = ModelConfig(**{name: fields[name] for name in ModelConfig.__dataclass_fields__})
    model = ShopModel(config)
    model.load_state_dict(load_file(str(folder / "model.safetensors")))
    return model.to(dtype).eval()

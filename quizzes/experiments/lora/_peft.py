"""Random adapters in PEFT's format, and checkpoints with an adapter merged in."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")


def write(folder: Path, rank: int, targets: Sequence[str], seed: int) -> Path:
    """Write a random adapter for the shop model, strong enough to change its output."""
    import torch
    from safetensors.torch import load_file, save_file

    from engine.zoo.registry import MODELS

    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, weight in load_file(str(MODELS / "shop" / "model.safetensors")).items():
        if name.split(".")[-2] in targets:
            prefix = f"base_model.model.{name.removesuffix('.weight')}"
            rows, columns = weight.shape
            a = torch.randn(rank, columns, generator=generator) * 0.5 / columns**0.5
            tensors[f"{prefix}.lora_A.weight"] = a
            tensors[f"{prefix}.lora_B.weight"] = (
                torch.randn(rows, rank, generator=generator) * 0.5 / rank**0.5
            )
    save_file(tensors, str(folder / "adapter_model.safetensors"))
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": "shop",
        "r": rank,
        "lora_alpha": rank,
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps({**config, "target_modules": list(targets)}))
    return folder


def merge(adapter: Path, folder: Path) -> Path:
    """Write the shop model with W + s B A in place of W, in fp32."""
    from safetensors.torch import load_file, save_file

    from engine.zoo.registry import MODELS

    shutil.copytree(MODELS / "shop", folder)
    config = json.loads((adapter / "adapter_config.json").read_text())
    scale = config["lora_alpha"] / config["r"]
    halves = load_file(str(adapter / "adapter_model.safetensors"))
    weights = {name: weight.float() for name, weight in load_file(str(folder / "model.safetensors")).items()}
    for name in weights:
        prefix = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{prefix}.lora_A.weight" in halves:
            a, b = (halves[f"{prefix}.lora_{half}.weight"].float() for half in "AB")
            weights[name] = weights[name] + scale * (b @ a)
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return folder

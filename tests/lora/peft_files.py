"""Random adapters in PEFT's layout for the shipped model, and the same model with one of them merged in."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.zoo.registry import MODELS

SHOP = MODELS / "shop"
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
ALL = ATTENTION + MLP


def matrices(targets: Sequence[str]) -> dict[str, tuple[int, int]]:
    """[out, in] of every matrix of `shop` that these modules name, by its name there."""
    stored = load_file(str(SHOP / "model.safetensors"))
    return {
        name.removesuffix(".weight"): tuple(weight.shape)
        for name, weight in stored.items()
        if name.split(".")[-2] in targets
    }


def random_tensors(
    seed: int, rank: int, targets: Sequence[str] = ALL, scale: float = 0.5
) -> dict[str, Tensor]:
    """A and B for every target; large enough that another adapter says something else."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, (rows, columns) in matrices(targets).items():
        prefix = f"base_model.model.{name}"
        tensors[f"{prefix}.lora_A.weight"] = (
            torch.randn(rank, columns, generator=generator) * scale / columns**0.5
        )
        tensors[f"{prefix}.lora_B.weight"] = torch.randn(rows, rank, generator=generator) * scale / rank**0.5
    return tensors


def write_adapter(
    folder: Path,
    seed: int = 1,
    rank: int = 8,
    targets: Sequence[str] = ALL,
    tensors: dict[str, Tensor] | None = None,
    **config: Any,
) -> Path:
    """An adapter folder; `config` overrides what adapter_config.json says."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = random_tensors(seed, rank, targets) if tensors is None else tensors
    save_file(tensors, str(folder / "adapter_model.safetensors"))
    content = {
        "peft_type": "LORA",
        "base_model_name_or_path": "shop",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": list(targets),
        "bias": "none",
    } | config
    (folder / "adapter_config.json").write_text(json.dumps(content))
    return folder


def merge(adapter: Path, folder: Path) -> Path:
    """`shop` in fp32 with W + alpha / r B A in place of W: what an adapter means, worked out by hand."""
    config = json.loads((adapter / "adapter_config.json").read_text())
    low_rank = load_file(str(adapter / "adapter_model.safetensors"))
    weights = {name: weight.float() for name, weight in load_file(str(SHOP / "model.safetensors")).items()}
    for name, a in low_rank.items():
        if name.endswith("lora_A.weight"):
            b = low_rank[name.replace("lora_A", "lora_B")]
            target = name.removeprefix("base_model.model.").replace("lora_A.weight", "weight")
            product = b.double() @ a.double() * (config["lora_alpha"] / config["r"])
            weights[target] = (weights[target].double() + product).float()
    shutil.copytree(SHOP, folder)
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return folder

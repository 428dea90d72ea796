"""LoRA on the training model: frozen matrices, each plus a product of two thin ones.

    y = W x + (alpha / r) B A x        A [r, in] starts random, B [out, r] at zero: training starts at the base

Source: LoRA (Hu et al. 2021). The names of the saved tensors are PEFT's, so peft and vLLM read the result.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from .model import ShopModel


class LowRankLinear(nn.Module):
    """A frozen linear layer and its adapter, whose master weights are 32-bit."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base, self.scaling = base, alpha / rank
        self.lora_a = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        low = F.linear(x, self.lora_a.to(x.dtype))
        return self.base(x) + F.linear(low, (self.scaling * self.lora_b).to(x.dtype))


def attach(model: ShopModel, target_modules: tuple[str, ...], rank: int, alpha: float) -> dict[str, Tensor]:
    """Freeze the model, attach an adapter to every target, and return the trained tensors by PEFT's names."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    trained: dict[str, Tensor] = {}
    for name, parent in list(model.named_modules()):
        for child in target_modules:
            base = getattr(parent, child, None)
            if isinstance(base, nn.Linear):
                adapter = LowRankLinear(base, rank, alpha)
                setattr(parent, child, adapter)
                prefix = f"base_model.model.{name}.{child}"
                trained[f"{prefix}.lora_A.weight"] = adapter.lora_a
                trained[f"{prefix}.lora_B.weight"] = adapter.lora_b
    return trained


def save_adapter(
    folder: Path,
    trained: dict[str, Tensor],
    base: str,
    target_modules: tuple[str, ...],
    rank: int,
    alpha: int,
) -> Path:
    """Write a PEFT folder in bfloat16: adapter_config.json and adapter_model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": sorted(target_modules),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    halves = {name: weight.detach().to(torch.bfloat16).contiguous() for name, weight in trained.items()}
    save_file(halves, str(folder / "adapter_model.safetensors"), metadata={"format": "pt"})
    (folder / "adapter_model.safetensors").chmod(
        0o644
    )  # safetensors makes the file readable by its owner only
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return folder


def load_adapter(folder: Path, model: ShopModel) -> ShopModel:
    """Attach a saved adapter to the training model, for checks in plain torch."""
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    trained = attach(model, tuple(config["target_modules"]), config["r"], config["lora_alpha"])
    stored = load_file(str(folder / "adapter_model.safetensors"))
    with torch.no_grad():
        for name, weight in trained.items():
            weight.copy_(stored[name])
    return model

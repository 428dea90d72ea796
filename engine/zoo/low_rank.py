"""LoRA on the training model: frozen matrices, each plus a product of two thin ones.

    y = W x + (alpha / r) B A x        A [r, in] starts random, B [out, r] at zero: training starts at the base

A few hundred steps suffice where the base needed thousands: the base already finds facts, and the adapter adds a
style of answer. Source: LoRA (Hu et al. 2021). The names of the saved tensors are PEFT's, so peft and vLLM read them.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .adapter_tasks import draw_task_conversation
from .corpus import ROWS
from .dialogue import Conversation
from .export import load_model, replace_folder
from .model import ShopModel
from .registry import resolve
from .trainer import Level, Trainer, rate_share

GRADIENT_NORM = 1.0


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
    """Replace `folder` by a PEFT folder in bfloat16: adapter_config.json and adapter_model.safetensors."""
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
    return replace_folder(folder, {"adapter_config.json": config}, trained, "adapter_model.safetensors")


class AdapterTrainer(Trainer):
    """Trains the low-rank matrices of an adapter; the model that it adapts stays as it is."""

    levels = (Level((2, 4), 1.0, False, 0.45), Level(ROWS, 1.0, False, 1.0))
    """Training starts with small shops: their prompts are shorter, so the same time covers more answers."""
    pool_size = 64
    smoothing = 0.9

    def build(self) -> None:
        recipe = self.recipe
        self.model = model = load_model(resolve(recipe.base), torch.bfloat16).train()
        self.trained = attach(model, recipe.target_modules, recipe.rank, recipe.alpha)
        self.optimizer = torch.optim.AdamW(self.trained.values(), betas=(0.9, 0.98), weight_decay=0.0)

    def draw(self, index: int, rows: tuple[int, int]) -> Conversation:
        return draw_task_conversation(self.recipe.name, "train", self.recipe.seed, index, rows)

    def choose_level(self, progress: float) -> None:
        self.position.level = int(progress >= self.levels[0].until)

    def update(self, progress: float) -> None:
        torch.nn.utils.clip_grad_norm_(self.trained.values(), GRADIENT_NORM)
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.lr * rate_share(self.recipe, self.position.step, progress)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer.state_dict(), "weights": self.trained}

    @torch.no_grad()
    def restore(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        for name, weight in self.trained.items():
            weight.copy_(state["weights"][name])

    def export(self, folder: Path) -> Path:
        made_with = (self.recipe.target_modules, self.recipe.rank, self.recipe.alpha)
        return save_adapter(folder, self.trained, self.recipe.base, *made_with)

"""Training recipes of the shipped models."""

from __future__ import annotations

from dataclasses import dataclass

from .model import ModelConfig


@dataclass(frozen=True)
class Recipe:
    """Shape, schedule and data of one training run."""

    name: str
    model: ModelConfig
    minutes: float
    tokens_per_step: int = 6144
    matrix_lr: float = 0.006  # Muon, for the matrices inside the layers
    vector_lr: float = 0.002  # AdamW, for embeddings and norms
    weight_decay: float = 0.01
    warmup_steps: int = 20
    decay_fraction: float = 0.5  # share of the time, at the end, in which the rates fall to zero
    seed: int = 1
    target: str | None = None  # for an EAGLE head: the model whose hidden states it predicts


@dataclass(frozen=True)
class AdapterRecipe:
    """Training run of a low-rank adapter. `name` is also its task."""

    name: str
    rank: int
    minutes: float
    base: str = "shop"
    alpha: int = 16
    lr: float = 0.006
    tokens_per_step: int = 2048
    warmup_steps: int = 10
    decay_fraction: float = 0.6
    seed: int = 1
    target_modules: tuple[str, ...] = (
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    )  # fmt: skip


_MODELS = (
    Recipe("shop", ModelConfig(256, 640, 6, 8, 4), minutes=91.5),
    Recipe("shop-draft", ModelConfig(128, 112, 3, 4, 4), minutes=28, matrix_lr=0.01, vector_lr=0.003),
    Recipe("shop-eagle", ModelConfig(256, 640, 1, 8, 4), minutes=45, matrix_lr=0.02, target="shop"),
)
_ADAPTERS = (
    AdapterRecipe("shop-lora-recommend", rank=8, minutes=8),
    AdapterRecipe("shop-lora-support", rank=8, minutes=8),
    AdapterRecipe("shop-lora-ja", rank=16, minutes=14),
)
RECIPES = {recipe.name: recipe for recipe in _MODELS}
ADAPTER_RECIPES = {recipe.name: recipe for recipe in _ADAPTERS}

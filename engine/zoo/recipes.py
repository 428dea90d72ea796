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


@dataclass(frozen=True)
class MedusaRecipe:
    """Training run of Medusa heads for the frozen model `target`."""

    name: str
    num_heads: int
    minutes: float
    target: str = "shop"
    num_layers: int = 2
    """Layers of a head's residual block."""
    tokens_per_step: int = 6144
    matrix_lr: float = 0.06
    vector_lr: float = 0.0  # all weights are matrices
    weight_decay: float = 0.0
    warmup_steps: int = 10
    decay_fraction: float = 0.6
    seed: int = 1


AnyRecipe = Recipe | AdapterRecipe | MedusaRecipe

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
MEDUSA_RECIPES = {"shop-medusa": MedusaRecipe("shop-medusa", num_heads=4, minutes=8)}
ALL_RECIPES: dict[str, AnyRecipe] = {**RECIPES, **MEDUSA_RECIPES, **ADAPTER_RECIPES}

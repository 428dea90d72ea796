"""Medusa heads: each predicts the token one place further ahead, all from the target's last hidden state.

    position       i              i + 1          i + 2          i + 3
    target         f_i -> t_i+1   f_i+1 -> ..                             hidden states after the last norm
    head 0         f_i ---------> guess for the token after t_i+1
    head 1         f_i ------------------------> guess for the one after that

A head is a residual block, x + silu(W x) for each of its layers, in front of the target's own output table. It starts
at W = 0: it then predicts what the target predicts one place earlier. A head sees neither t_i+1 nor the other heads'
guesses, and it cannot look anything up in the context. But it costs only its matrices and the output table.

The loss of a head is the cross entropy with the target's own distribution at the place that it guesses, as for the
EAGLE head. Source: Medusa, Cai et al. 2024, section 2.2.1 (Medusa-1: the target is frozen).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from .export import load_model, replace_folder
from .optimizer import MasterOptimizer
from .recipes import MedusaRecipe
from .registry import MODELS
from .tokenizer import VOCAB_SIZE
from .trainer import Batch, Trainer

HEAD_WEIGHT = 0.8  # relative to the previous head: its draft counts only if the earlier ones were right


class ResidualBlock(nn.Module):
    """x + silu(W x), once per layer. It starts as the identity."""

    def __init__(self, hidden_size: int, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(num_layers)
        )
        for weight in self.parameters():
            nn.init.zeros_(weight)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + F.silu(layer(x))
        return x


class MedusaHeads(nn.Module):
    """One residual block for each place ahead; weights have vLLM's names, `blocks.0.layers.0.weight`."""

    def __init__(self, hidden_size: int, num_heads: int, num_layers: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(ResidualBlock(hidden_size, num_layers) for _ in range(num_heads))

    def forward(self, hidden: Tensor) -> list[Tensor]:
        """Return the states of each head; the target's output table maps them to tokens."""
        return [block(hidden) for block in self.blocks]


def load_heads(folder: Path) -> MedusaHeads:
    """Read a folder written by `export_heads`, in float32."""
    fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    heads = MedusaHeads(fields["hidden_size"], fields["num_heads"], fields["num_hidden_layers"])
    heads.load_state_dict(load_file(str(folder / "model.safetensors")))
    return heads.float().eval()


class MedusaTrainer(Trainer):
    """Trains heads for a frozen shipped model on the answers of the corpus. `exact` is that of head 0."""

    def build(self) -> None:
        recipe: MedusaRecipe = self.recipe
        self.target = load_model(MODELS / recipe.target, torch.bfloat16)
        heads = MedusaHeads(self.target.config.hidden_size, recipe.num_heads, recipe.num_layers)
        self.optimizer = MasterOptimizer(heads, recipe.weight_decay)
        self.model = heads.to(torch.bfloat16)
        self.position.level = len(self.levels) - 1

    def loss(self, batch: Batch, progress: float) -> tuple[Tensor, float]:
        """Return the weighted loss of all heads, and how often head 0 agrees with the target."""
        with torch.no_grad():
            hidden = self.target.hidden(batch.tokens)[0].flatten(0, 1)[batch.places]
            chances = self.target.logits(hidden).float().softmax(-1)
        total, exact = chances.new_zeros(()), 0.0
        for ahead, block in enumerate(self.model.get_submodule("blocks").children(), 1):
            # The places of an answer are consecutive, so `ahead` entries on is `ahead` tokens on inside it.
            inside = batch.places[ahead:] - batch.places[:-ahead] == ahead
            logits = self.target.logits(block(hidden[:-ahead][inside])).float()
            wanted = chances[ahead:][inside]
            total = total - HEAD_WEIGHT ** (ahead - 1) * (wanted * logits.log_softmax(-1)).sum(-1).mean()
            if ahead == 1:
                exact = float((logits.argmax(-1) == wanted.argmax(-1)).float().mean())
        return total, exact

    def export(self, folder: Path) -> Path:
        return export_heads(folder, self.recipe, self.optimizer.weights)


def export_heads(folder: Path, recipe: MedusaRecipe, weights: dict[str, Tensor]) -> Path:
    """Replace `folder` by these heads in bfloat16, in the layout of vLLM's MedusaModel but for the output table."""
    sizes = {name.rpartition(".")[0]: weight.shape[1] for name, weight in weights.items()}
    fields: dict[str, Any] = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": next(iter(sizes.values())),
        "vocab_size": VOCAB_SIZE,
        "num_heads": recipe.num_heads,
        "num_hidden_layers": recipe.num_layers,
        "medusa_fc_bias": False,
        "original_lm_head": True,
        "torch_dtype": "bfloat16",
    }
    return replace_folder(folder, {"config.json": fields}, weights)

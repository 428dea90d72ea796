"""Train a shipped adapter with the loop, checkpoints and batches of `train.py`; only the low-rank matrices change.

A few hundred steps suffice where the base needed thousands: the base already finds facts, and the adapter adds a
style of answer.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import torch
import torch.nn.functional as F
from rich.console import Console

from .adapter_tasks import draw_task_conversation
from .corpus import ROWS, Sample, tokenize
from .export import load_model
from .low_rank import attach, save_adapter
from .recipes import ADAPTER_RECIPES, AdapterRecipe
from .registry import resolve
from .tokenizer import END_OF_TEXT, load_tokenizer, token_id
from .train import checkpoint_path, collate, run_until_done

SMALL_SHOPS, SMALL_UNTIL = (2, 4), 0.45
"""Training starts with small shops: their prompts are shorter, so the same time covers more answers."""
POOL = 64
GRADIENT_NORM = 1.0


class AdapterTrainer:
    """One run of an adapter's recipe. The checkpoint holds `position`, the optimizer's state and the matrices."""

    def __init__(self, recipe: AdapterRecipe) -> None:
        self.recipe = recipe
        folder = resolve(recipe.base)
        self.tokenizer = load_tokenizer(folder)
        self.pad = token_id(self.tokenizer, END_OF_TEXT)
        torch.manual_seed(recipe.seed)
        self.model = load_model(folder, torch.bfloat16).train()
        self.trained = attach(self.model, recipe.target_modules, recipe.rank, recipe.alpha)
        self.optimizer = torch.optim.AdamW(self.trained.values(), betas=(0.9, 0.98), weight_decay=0.0)
        self.position: dict[str, float] = dict.fromkeys(
            ("step", "elapsed", "tokens", "loss", "exact", "pool", "batch"), 0
        )
        self._pool: list[list[Sample]] = []

    def _batches(self, progress: float) -> list[list[Sample]]:
        """Return the conversations of the current pool in batches of about `tokens_per_step` tokens."""
        rows = SMALL_SHOPS if progress < SMALL_UNTIL else ROWS
        first = int(self.position["pool"]) * POOL
        samples = [
            tokenize(
                draw_task_conversation(self.recipe.name, "train", self.recipe.seed, index, rows),
                self.tokenizer,
            )
            for index in range(first, first + POOL)
        ]
        samples.sort(key=lambda sample: len(sample.tokens))
        batches: list[list[Sample]] = [[]]
        for sample in samples:
            if batches[-1] and (len(batches[-1]) + 1) * len(sample.tokens) > self.recipe.tokens_per_step:
                batches.append([])
            batches[-1].append(sample)
        Random(first).shuffle(batches)
        return batches

    def step(self, progress: float) -> None:
        """Take one optimizer step on the next batch."""
        began = time.monotonic()
        position = self.position
        if not self._pool:
            self._pool = self._batches(progress)
        if position["batch"] >= len(self._pool):
            position["pool"], position["batch"] = position["pool"] + 1, 0
            self._pool = self._batches(progress)
        batch = collate(self._pool[int(position["batch"])], self.pad, echoes=False)
        hidden, _ = self.model.hidden(batch.tokens)
        logits = self.model.logits(hidden.flatten(0, 1)[batch.places]).float()
        loss = F.cross_entropy(logits, batch.targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.trained.values(), GRADIENT_NORM)
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate(progress)
        self.optimizer.step()
        self.optimizer.zero_grad()
        wrong = (logits.argmax(-1) != batch.targets).long()
        per_answer = torch.zeros(int(batch.answers.max()) + 1, dtype=torch.long)
        exact = float((per_answer.index_add_(0, batch.answers, wrong)[1:] == 0).float().mean())
        keep = 0.9 if position["step"] else 0.0
        position["loss"] = keep * position["loss"] + (1 - keep) * float(loss.detach())
        position["exact"] = keep * position["exact"] + (1 - keep) * exact
        position["step"] += 1
        position["batch"] += 1
        position["tokens"] += batch.tokens.numel()
        position["elapsed"] += time.monotonic() - began

    def _rate(self, progress: float) -> float:
        warm = min(1.0, (self.position["step"] + 1) / self.recipe.warmup_steps)
        return self.recipe.lr * warm * max(0.0, min(1.0, (1.0 - progress) / self.recipe.decay_fraction))

    def save(self, path: Path) -> None:
        """Write the checkpoint in one piece."""
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        state = {"position": self.position, "optimizer": self.optimizer.state_dict(), "weights": self.trained}
        torch.save(state, fresh)
        os.replace(fresh, path)

    @torch.no_grad()
    def load(self, path: Path) -> None:
        state = torch.load(path, weights_only=True)
        self.position, self._pool = state["position"], []
        self.optimizer.load_state_dict(state["optimizer"])
        for name, weight in self.trained.items():
            weight.copy_(state["weights"][name])

    def export(self, folder: Path) -> Path:
        recipe = self.recipe
        return save_adapter(
            folder, self.trained, recipe.base, recipe.target_modules, recipe.rank, recipe.alpha
        )

    @property
    def done(self) -> tuple[int, float]:
        return int(self.position["step"]), self.position["elapsed"]

    def status(self, progress: float) -> str:
        """Return one line of progress."""
        position = self.position
        left = max(0.0, self.recipe.minutes * (1 - progress))
        return (
            f"step {position['step']:5.0f} {progress:4.0%}  loss {position['loss']:.3f}  "
            f"exact {position['exact']:.3f}  "
            f"{position['tokens'] / max(position['elapsed'], 1e-9):,.0f} tok/s  {left:.0f} min left"
        )


def train_adapter(
    recipe: str | AdapterRecipe,
    out: Path,
    resume: bool = False,
    minutes: float | None = None,
    max_steps: int | None = None,
    checkpoint: Path | None = None,
    console: Console | None = None,
) -> dict[str, float]:
    """Train an adapter until its time (or `max_steps`) is used up, then write it to the folder `out`.

    Returns the position: steps, seconds, tokens, and the running loss and exact match on training answers.
    """
    recipe = ADAPTER_RECIPES[recipe] if isinstance(recipe, str) else recipe
    recipe = replace(recipe, minutes=minutes) if minutes is not None else recipe
    checkpoint = checkpoint or checkpoint_path(recipe.name)
    trainer = AdapterTrainer(recipe)
    if resume:
        trainer.load(checkpoint)
    run_until_done(trainer, out, checkpoint, recipe.minutes * 60, max_steps, console)
    return dict(trainer.position)

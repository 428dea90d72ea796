"""Train a shipped model, head or adapter: restartable, within a time budget.

The learning rates follow the used share of the time budget, not a number of steps, so that a run ends on time on a
shared machine.
"""

from __future__ import annotations

import signal
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from tokenizers import Tokenizer

from prep_common.paths import cache_dir

from .corpus import tokenizer_texts
from .eagle import EagleTrainer
from .low_rank import AdapterTrainer
from .medusa import MedusaTrainer
from .recipes import ALL_RECIPES, AdapterRecipe, AnyRecipe, MedusaRecipe, Recipe
from .registry import MODELS, resolve
from .tokenizer import load_tokenizer, train_tokenizer
from .trainer import Position, Trainer


class TrainingStopped(Exception):
    """Raised after Ctrl-C, once the checkpoint is saved."""


def checkpoint_path(recipe: str) -> Path:
    """Return the path of a recipe's checkpoint, in the user's cache: checkpoints are too large for the repository."""
    return cache_dir() / "zoo" / f"{recipe}.pt"


def train(
    recipe: str | AnyRecipe,
    out: Path,
    resume: bool = False,
    minutes: float | None = None,
    max_steps: int | None = None,
    checkpoint: Path | None = None,
    tokenizer: Tokenizer | None = None,
    console: Console | None = None,
) -> Position:
    """Train `recipe` until its time (or `max_steps`) is used up, then write the model to the folder `out`.

    Returns the position: steps, seconds, tokens. Only a complete run writes `out`, atomically: it replaces an existing
    folder. Raises TrainingStopped on Ctrl-C, which keeps a checkpoint and leaves `out` unchanged.
    """
    plan = ALL_RECIPES[recipe] if isinstance(recipe, str) else recipe
    plan = replace(plan, minutes=minutes) if minutes is not None else plan
    checkpoint = checkpoint or checkpoint_path(plan.name)
    if tokenizer is None:
        folder = resolve(plan.base) if isinstance(plan, AdapterRecipe) else MODELS / "shop"
        tokenizer = load_tokenizer(folder) if folder.exists() else train_tokenizer(tokenizer_texts())
    trainer = _kind(plan)(plan, tokenizer)
    if resume:
        trainer.load(checkpoint)
    if not _finish(trainer, plan.minutes * 60, max_steps, checkpoint, console or Console()):
        kept = f"{out} is unchanged" if out.exists() else "No model was written"
        raise TrainingStopped(f"Stopped. {kept}; the checkpoint is {checkpoint}.")
    trainer.export(out)
    return trainer.position


def _kind(plan: AnyRecipe) -> type[Trainer]:
    if isinstance(plan, Recipe):
        return EagleTrainer if plan.target else Trainer
    return MedusaTrainer if isinstance(plan, MedusaRecipe) else AdapterTrainer


def _finish(trainer: Trainer, budget: float, most: int | None, checkpoint: Path, console: Console) -> bool:
    """Step until `budget` seconds or `most` steps are used up, with a checkpoint every two minutes and at the end.

    Returns False if SIGINT or SIGTERM stopped it after a step; one that is ignored stays ignored.
    """
    asked: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: asked.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
        if signal.getsignal(number) != signal.SIG_IGN
    }
    saved = said = time.monotonic()
    try:
        with console.status("first step ...") if console.is_terminal else nullcontext() as live:
            while True:
                position = trainer.position
                progress = position.step / most if most else position.elapsed / budget
                if progress >= 1.0 or asked:
                    break
                trainer.step(progress)
                now = time.monotonic()
                if live is not None:
                    live.update(trainer.status(progress))
                elif now - said > 15:
                    said = now
                    console.print(trainer.status(progress), highlight=False, soft_wrap=True)
                if now - saved > 120:
                    saved = now
                    trainer.save(checkpoint)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    trainer.save(checkpoint)
    console.print(trainer.status(progress), highlight=False, soft_wrap=True)
    return not asked

"""Train a shipped model: restartable, within a time budget.

The learning rates follow the used share of the time budget, not a number of steps, so that a run ends on time on a
shared machine. Everything else depends on the position in the corpus: a killed and resumed run takes the
same steps as an uninterrupted one (exactly so under `max_steps`, where progress counts steps).
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Protocol, cast

import torch
import torch.nn.functional as F
from rich.console import Console
from tokenizers import Tokenizer
from torch import Tensor, nn

from common.paths import cache_dir

from .corpus import Sample, draw_conversation, tokenize, tokenizer_texts
from .export import export_model
from .model import ShopModel
from .optimizer import MasterOptimizer
from .recipes import RECIPES, Recipe
from .registry import MODELS
from .start import initialize
from .tokenizer import END_OF_TEXT, load_tokenizer, token_id, train_tokenizer


@dataclass(frozen=True)
class Level:
    """A stage of the curriculum: the size of the shops and the tokens of a step."""

    rows: tuple[int, int]
    step_share: float  # share of the recipe's tokens_per_step: many small steps learn look-ups sooner
    echoes: bool  # train on repetitions in the context too
    until: float  # progress at which the next level begins even if this one is not mastered


LEVELS = (
    Level((2, 3), 0.5, True, 0.25),
    Level((2, 4), 0.66, True, 0.4),
    Level((2, 6), 0.66, False, 0.55),
    Level((2, 8), 0.66, False, 1.0),
)
ENOUGH = 0.85  # share of training answers reproduced in full at which the next level begins
POOL = 128  # conversations that are sorted by length together


@dataclass
class Position:
    """Progress of a run; with the optimizer's state it forms the checkpoint."""

    step: int = 0
    elapsed: float = 0.0
    tokens: int = 0
    level: int = 0
    exact: float = 0.0  # running share of answers reproduced in full
    loss: float = 0.0
    pool: int = 0
    batch: int = 0  # next batch of the pool


@dataclass(frozen=True)
class Batch:
    """Padded tokens; at every position that predicts an answer token, the token and its answer's number."""

    tokens: Tensor  # [batch, length]
    places: Tensor  # flat positions that predict an answer token
    targets: Tensor
    answers: Tensor  # which answer of the batch each target belongs to, from 1; 0 for echoes


def collate(samples: list[Sample], pad: int, echoes: bool) -> Batch:
    length = max(len(sample.tokens) for sample in samples)
    tokens = torch.full((len(samples), length), pad)
    marks = torch.zeros((len(samples), length), dtype=torch.long)
    for row, sample in enumerate(samples):
        tokens[row, : len(sample.tokens)] = torch.from_numpy(sample.tokens)
        marks[row, : len(sample.tokens)] = torch.from_numpy(sample.answer_ids)
    following = marks[:, 1:] != 0 if echoes else marks[:, 1:] > 0
    places = following.nonzero()
    numbers = marks[:, 1:][following]
    answers = torch.zeros_like(numbers)
    keys = places[:, 0] * 1000 + numbers
    answers[numbers > 0] = keys[numbers > 0].unique(return_inverse=True)[1] + 1
    return Batch(
        tokens,
        places[:, 0] * length + places[:, 1],
        tokens[:, 1:][following],
        answers,
    )


def pool_batches(recipe: Recipe, tokenizer: Tokenizer, pool: int, level: int) -> list[list[Sample]]:
    """Return one pool of conversations as batches of about `tokens_per_step` tokens, in random order."""
    budget = LEVELS[level].step_share * recipe.tokens_per_step
    indices = range(pool * POOL, (pool + 1) * POOL)
    samples = [
        tokenize(draw_conversation("train", recipe.seed, index, LEVELS[level].rows, emphasis=True), tokenizer)
        for index in indices
    ]
    samples.sort(key=lambda sample: len(sample.tokens))
    batches: list[list[Sample]] = [[]]
    for sample in samples:
        if batches[-1] and (len(batches[-1]) + 1) * len(sample.tokens) > budget:
            batches.append([])
        batches[-1].append(sample)
    Random(pool).shuffle(batches)
    return batches


def rates(recipe: Recipe, step: int, progress: float) -> tuple[float, float]:
    """Return the learning rates: a short warm-up, then constant, then linear to zero."""
    warm = min(1.0, (step + 1) / recipe.warmup_steps)
    decay = min(1.0, (1.0 - progress) / recipe.decay_fraction)
    scale = warm * max(decay, 0.0)
    return recipe.matrix_lr * scale, recipe.vector_lr * scale


def to_compute(model: ShopModel) -> ShopModel:
    """Cast to 16 bits, except the embedding, whose gradient sums thousands of rows."""
    model.to(torch.bfloat16)
    model.model.embed_tokens.float()
    return model


class Trainer:
    """One run of a recipe."""

    model: nn.Module

    def __init__(self, recipe: Recipe, tokenizer: Tokenizer) -> None:
        self.recipe, self.tokenizer = recipe, tokenizer
        self.pad = token_id(tokenizer, END_OF_TEXT)
        torch.manual_seed(recipe.seed)
        model = ShopModel(recipe.model)
        initialize(model)
        self.optimizer = MasterOptimizer(model, recipe.weight_decay)
        self.model = to_compute(model)
        self.position = Position()
        self._pool: list[list[Sample]] = []

    def next_batch(self, progress: float) -> Batch:
        """Return the batch at the current position; the level may rise between pools."""
        position = self.position
        if not self._pool:  # a new run, or one resumed inside a pool
            self._pool = pool_batches(self.recipe, self.tokenizer, position.pool, position.level)
        if position.batch == len(self._pool):
            position.pool, position.batch = position.pool + 1, 0
            while position.level + 1 < len(LEVELS) and (
                progress > LEVELS[position.level].until or position.exact > ENOUGH
            ):
                position.level, position.exact = position.level + 1, 0.0
            self._pool = pool_batches(self.recipe, self.tokenizer, position.pool, position.level)
        position.batch += 1
        return collate(self._pool[position.batch - 1], self.pad, LEVELS[position.level].echoes)

    def step(self, progress: float) -> None:
        """Take one optimizer step on the next batch."""
        began = time.monotonic()
        batch = self.next_batch(progress)
        model = cast(ShopModel, self.model)
        hidden, _ = model.hidden(batch.tokens)
        logits = model.logits(hidden.flatten(0, 1)[batch.places]).float()
        loss = F.cross_entropy(logits, batch.targets)
        loss.backward()
        self.optimizer.step(self.model, *rates(self.recipe, self.position.step, progress))
        with torch.no_grad():
            wrong = (logits.argmax(-1) != batch.targets).long()
            per_answer = torch.zeros(int(batch.answers.max()) + 1, dtype=torch.long).index_add_(
                0, batch.answers, wrong
            )
            exact = float((per_answer[1:] == 0).float().mean())
        position = self.position
        keep = 0.95 if position.step else 0.0
        position.exact = 0.95 * position.exact + 0.05 * exact
        position.loss = keep * position.loss + (1 - keep) * float(loss.detach())
        position.step, position.tokens = position.step + 1, position.tokens + batch.tokens.numel()
        position.elapsed += time.monotonic() - began

    def save(self, path: Path) -> None:
        """Write the checkpoint in one piece."""
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        torch.save({"position": vars(self.position), "optimizer": self.optimizer.state_dict()}, fresh)
        os.replace(fresh, path)

    def load(self, path: Path) -> None:
        state = torch.load(path, weights_only=True)
        self.position, self._pool = Position(**state["position"]), []
        self.optimizer.load_state_dict(state["optimizer"], self.model)

    def export(self, folder: Path) -> Path:
        return export_model(folder, self.recipe.model, self.optimizer.weights, self.tokenizer)

    @property
    def done(self) -> tuple[int, float]:
        return self.position.step, self.position.elapsed

    def status(self, progress: float) -> str:
        """Return one line of progress."""
        position, left = self.position, self.recipe.minutes * max(0.0, 1 - progress)
        return (
            f"step {position.step:5d} {progress:4.0%}  loss {position.loss:.3f}  exact {position.exact:.3f}  "
            f"{LEVELS[position.level].rows} rows  {position.tokens / max(position.elapsed, 1e-9):,.0f} tok/s  "
            f"{left:.0f} min left"
        )


def checkpoint_path(recipe: str) -> Path:
    """Return the path of a recipe's checkpoint, in the user's cache: checkpoints are too large for the repository."""
    return cache_dir() / "zoo" / f"{recipe}.pt"


class Run(Protocol):
    """Interface of a trainer for the training loop."""

    def step(self, progress: float) -> None:
        """Take one optimizer step; `progress` is the used share of the time, 0 to 1."""

    def save(self, path: Path) -> None: ...

    def export(self, folder: Path) -> Path: ...

    def status(self, progress: float) -> str:
        """Return one line of progress."""

    @property
    def done(self) -> tuple[int, float]:
        """Return steps and seconds so far."""


def train(
    recipe: str | Recipe,
    out: Path,
    resume: bool = False,
    minutes: float | None = None,
    max_steps: int | None = None,
    checkpoint: Path | None = None,
    tokenizer: Tokenizer | None = None,
    console: Console | None = None,
) -> Position:
    """Train `recipe` until its time (or `max_steps`) is used up, then write the model to the folder `out`.

    Returns the position: steps, seconds, tokens. Raises TrainingStopped on Ctrl-C, which keeps a checkpoint and leaves
    `out` unchanged.
    """
    recipe = RECIPES[recipe] if isinstance(recipe, str) else recipe
    recipe = replace(recipe, minutes=minutes) if minutes is not None else recipe
    checkpoint = checkpoint or checkpoint_path(recipe.name)
    if tokenizer is None:
        shared = MODELS / "shop"
        tokenizer = load_tokenizer(shared) if shared.exists() else train_tokenizer(tokenizer_texts())
    trainer = _trainer_class(recipe)(recipe, tokenizer)
    if resume:
        trainer.load(checkpoint)
    run_until_done(trainer, out, checkpoint, recipe.minutes * 60, max_steps, console)
    return trainer.position


def run_until_done(
    run: Run,
    out: Path,
    checkpoint: Path,
    budget: float,
    max_steps: int | None = None,
    console: Console | None = None,
) -> None:
    """Step until `budget` seconds or `max_steps` are used up, with a checkpoint every two minutes.

    Only a complete run writes `out`, atomically: it replaces an existing folder. Raises TrainingStopped on Ctrl-C.
    """
    console = console or Console()
    saved = said = time.monotonic()
    spinner = console.status("first step ...") if console.is_terminal else nullcontext()
    with StopOnSignal() as stop, spinner as live:
        while True:
            steps, elapsed = run.done
            progress = steps / max_steps if max_steps else elapsed / budget
            if progress >= 1.0 or stop.asked:
                break
            run.step(progress)
            now = time.monotonic()
            if live is not None:
                live.update(run.status(progress))
            elif now - said > 15:
                said = now
                console.print(run.status(progress), highlight=False, soft_wrap=True)
            if now - saved > 120:
                saved = now
                run.save(checkpoint)
    run.save(checkpoint)
    console.print(run.status(progress), highlight=False, soft_wrap=True)
    if stop.asked:
        kept = f"{out} is unchanged" if out.exists() else "No model was written"
        raise TrainingStopped(f"Stopped. {kept}; the checkpoint is {checkpoint}.")
    fresh = out.with_name(f".{out.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    run.export(fresh)
    if out.exists():
        shutil.rmtree(out)
    fresh.rename(out)


def _trainer_class(recipe: Recipe) -> type[Trainer]:
    if recipe.target is None:
        return Trainer
    from .eagle import EagleTrainer

    return EagleTrainer


class TrainingStopped(Exception):
    """Raised after Ctrl-C, once the checkpoint is saved."""


class StopOnSignal:
    """Turn SIGINT and SIGTERM into a request to stop after the current step."""

    def __enter__(self) -> StopOnSignal:
        self.asked = False
        self._before = {
            number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)
        }
        return self

    def _ask(self, *_: object) -> None:
        self.asked = True

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

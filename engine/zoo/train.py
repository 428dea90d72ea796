"""Train a shipped model: restartable, and on a clock.

The learning rates follow the share of the time budget that is used, not a number of steps, so that a run ends when it
should on a machine that is shared. Everything else is a function of the position in the corpus: a run that was killed
and resumed takes the same steps as one that was not (exactly so under `max_steps`, where progress counts steps).
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import torch
import torch.nn.functional as F
from rich.console import Console
from tokenizers import Tokenizer
from torch import Tensor

from .corpus import Sample, draw_conversation, tokenize, tokenizer_texts
from .export import export_model
from .model import ShopModel
from .optimizer import MasterOptimizer
from .recipes import RECIPES, Recipe
from .registry import MODELS
from .start import initialize
from .tokenizer import END_OF_TEXT, load_tokenizer, train_tokenizer


@dataclass(frozen=True)
class Level:
    """A stage of the curriculum: how large the shops are, and how many tokens make a step."""

    rows: tuple[int, int]
    step_share: (
        float  # of the recipe's tokens_per_step: looking things up is found sooner in many small steps
    )
    echoes: bool  # learn from repetitions in the context too
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
    """Where a run stands; together with the optimizer's state it is the whole checkpoint."""

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
    """Padded tokens and, at every place that predicts an answer token, that token and its answer's number."""

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
    """One pool of conversations as batches of about `tokens_per_step` tokens, in random order."""
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
    """Learning rates: a short warm-up, then constant, then a straight line to zero."""
    warm = min(1.0, (step + 1) / recipe.warmup_steps)
    decay = min(1.0, (1.0 - progress) / recipe.decay_fraction)
    scale = warm * max(decay, 0.0)
    return recipe.matrix_lr * scale, recipe.vector_lr * scale


def to_compute(model: ShopModel) -> ShopModel:
    """16-bit weights, but a 32-bit embedding: its gradient sums thousands of rows."""
    model.to(torch.bfloat16)
    model.model.embed_tokens.float()
    return model


class Trainer:
    """One run of a recipe."""

    def __init__(self, recipe: Recipe, tokenizer: Tokenizer) -> None:
        self.recipe, self.tokenizer = recipe, tokenizer
        self.pad = tokenizer.token_to_id(END_OF_TEXT)
        torch.manual_seed(recipe.seed)
        model = ShopModel(recipe.model)
        initialize(model)
        self.optimizer = MasterOptimizer(model, recipe.weight_decay)
        self.model = to_compute(model)
        self.position = Position()
        self._pool: list[list[Sample]] = []

    def next_batch(self, progress: float) -> Batch:
        """The batch at the current position; the level may rise between pools."""
        position = self.position
        if not self._pool:  # a new run, or one that was just resumed inside a pool
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
        """One optimizer step on the next batch."""
        batch = self.next_batch(progress)
        hidden, _ = self.model.hidden(batch.tokens)
        logits = self.model.logits(hidden.flatten(0, 1)[batch.places]).float()
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


def checkpoint_path(recipe: str) -> Path:
    """Checkpoints are large and private: they live in the user's cache, not in the repository."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return cache / "prep" / "zoo" / f"{recipe}.pt"


def train(
    recipe: str | Recipe,
    out: Path,
    resume: bool = False,
    minutes: float | None = None,
    max_steps: int | None = None,
    checkpoint: Path | None = None,
    tokenizer: Tokenizer | None = None,
    export_every: float = 600.0,
    console: Console | None = None,
) -> Position:
    """Train `recipe` into the folder `out`; stops when its time (or `max_steps`) is used up, or on Ctrl-C."""
    recipe = RECIPES[recipe] if isinstance(recipe, str) else recipe
    recipe = replace(recipe, minutes=minutes) if minutes is not None else recipe
    console = console or Console()
    checkpoint = checkpoint or checkpoint_path(recipe.name)
    if tokenizer is None:
        shared = MODELS / "shop"
        tokenizer = load_tokenizer(shared) if shared.exists() else train_tokenizer(tokenizer_texts())
    trainer = _trainer_class(recipe)(recipe, tokenizer)
    if resume:
        trainer.load(checkpoint)
    position, stop = trainer.position, StopOnSignal()
    budget, said = recipe.minutes * 60, time.monotonic()
    saved = exported = time.monotonic()
    spinner = console.status("first step ...") if console.is_terminal else nullcontext()
    with stop, spinner as live:
        while True:
            progress = position.step / max_steps if max_steps else position.elapsed / budget
            if progress >= 1.0 or stop.asked:
                break
            began = time.monotonic()
            trainer.step(progress)
            now = time.monotonic()
            position.elapsed += now - began
            if live is not None:
                live.update(status_line(position, budget, progress))
            elif now - said > 15:
                said = now
                console.print(status_line(position, budget, progress), highlight=False, soft_wrap=True)
            if now - saved > 120:
                saved = now
                trainer.save(checkpoint)
            if now - exported > export_every or (position.step >= 100 and not out.exists()):
                exported = now
                trainer.export(out)
    trainer.save(checkpoint)
    trainer.export(out)
    console.print(status_line(position, budget, progress), highlight=False, soft_wrap=True)
    if stop.asked:
        console.print(f"Stopped and saved. Go on with: prep zoo train {recipe.name} --resume")
    return position


def _trainer_class(recipe: Recipe) -> type[Trainer]:
    if recipe.target is None:
        return Trainer
    from .eagle import EagleTrainer

    return EagleTrainer


def status_line(position: Position, budget: float, progress: float) -> str:
    """One line of progress for a log."""
    left = max(0.0, budget * (1 - progress)) / 60
    return (
        f"step {position.step:6d}  {progress:6.1%}  loss {position.loss:.3f}  exact {position.exact:.3f}  "
        f"rows {LEVELS[position.level].rows}  {position.tokens / max(position.elapsed, 1e-9):,.0f} tok/s  "
        f"{left:.0f} min left"
    )


class StopOnSignal:
    """Turns Ctrl-C and a polite kill into a request to stop after the current step."""

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


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a shipped model.")
    parser.add_argument("recipe", choices=sorted(RECIPES))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--max-steps", type=int)
    parser.add_argument("--checkpoint", type=Path)
    options = parser.parse_args()
    train(
        options.recipe,
        options.out or MODELS / options.recipe,
        options.resume,
        options.minutes,
        options.max_steps,
        options.checkpoint,
    )


if __name__ == "__main__":
    main()

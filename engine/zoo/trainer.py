"""One run of a recipe: batches of the corpus, a step on each, and the checkpoint between steps.

Everything but the learning rates depends on the position in the corpus: a killed and resumed run takes the same steps
as an uninterrupted one (exactly so under `max_steps`, where progress counts steps).
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, cast

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from .corpus import Sample, draw_conversation, tokenize
from .dialogue import Conversation
from .export import export_model
from .model import ShopModel
from .optimizer import MasterOptimizer
from .recipes import AnyRecipe
from .start import initialize
from .tokenizer import END_OF_TEXT, token_id


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
    return Batch(tokens, places[:, 0] * length + places[:, 1], tokens[:, 1:][following], answers)


def rate_share(recipe: AnyRecipe, step: int, progress: float) -> float:
    """Return the share of the recipe's learning rates: a short warm-up, then constant, then linear to zero."""
    warm = min(1.0, (step + 1) / recipe.warmup_steps)
    return warm * max(0.0, min(1.0, (1.0 - progress) / recipe.decay_fraction))


class Trainer:
    """Trains a language model from the start. Subclasses train drafting heads or an adapter of one."""

    levels: tuple[Level, ...] = LEVELS
    pool_size = 128  # conversations that are sorted by length together
    smoothing = 0.95  # weight of the earlier steps in the running loss and exact match

    def __init__(self, recipe: Any, tokenizer: Tokenizer) -> None:
        self.recipe, self.tokenizer = recipe, tokenizer
        self.pad = token_id(tokenizer, END_OF_TEXT)
        self.position = Position()
        self._pool: list[list[Sample]] = []
        torch.manual_seed(recipe.seed)
        self.build()

    def build(self) -> None:
        """Create the model and its optimizer: 16 bits but for the embedding, whose gradient sums thousands of rows."""
        model = ShopModel(self.recipe.model)
        initialize(model)
        self.optimizer: Any = MasterOptimizer(model, self.recipe.weight_decay)
        self.model: nn.Module = model.to(torch.bfloat16)
        model.model.embed_tokens.float()

    def draw(self, index: int, rows: tuple[int, int]) -> Conversation:
        return draw_conversation("train", self.recipe.seed, index, rows, emphasis=True)

    def choose_level(self, progress: float) -> None:
        """Raise the level between two pools, if this one is mastered or its time is used up."""
        position = self.position
        while position.level + 1 < len(self.levels) and (
            progress > self.levels[position.level].until or position.exact > ENOUGH
        ):
            position.level, position.exact = position.level + 1, 0.0

    def _draw_pool(self) -> list[list[Sample]]:
        """Return one pool of conversations as batches of about `tokens_per_step` tokens, in random order."""
        pool, level = self.position.pool, self.levels[self.position.level]
        indices = range(pool * self.pool_size, (pool + 1) * self.pool_size)
        samples = [tokenize(self.draw(index, level.rows), self.tokenizer) for index in indices]
        samples.sort(key=lambda sample: len(sample.tokens))
        batches: list[list[Sample]] = [[]]
        for sample in samples:
            size = (len(batches[-1]) + 1) * len(sample.tokens)
            if batches[-1] and size > level.step_share * self.recipe.tokens_per_step:
                batches.append([])
            batches[-1].append(sample)
        Random(pool).shuffle(batches)
        return batches

    def next_batch(self, progress: float) -> Batch:
        """Return the batch at the current position; the level may rise between pools."""
        position = self.position
        if not self._pool:  # a new run, or one resumed inside a pool
            self._pool = self._draw_pool()
        if position.batch == len(self._pool):
            position.pool, position.batch = position.pool + 1, 0
            self.choose_level(progress)
            self._pool = self._draw_pool()
        position.batch += 1
        return collate(self._pool[position.batch - 1], self.pad, self.levels[position.level].echoes)

    def step(self, progress: float) -> None:
        """Take one optimizer step on the next batch; `progress` is the used share of the time, 0 to 1."""
        began = time.monotonic()
        batch = self.next_batch(progress)
        loss, exact = self.loss(batch, progress)
        loss.backward()
        self.update(progress)
        position = self.position
        keep = self.smoothing if position.step else 0.0
        position.exact = keep * position.exact + (1 - keep) * exact
        position.loss = keep * position.loss + (1 - keep) * float(loss.detach())
        position.step, position.tokens = position.step + 1, position.tokens + batch.tokens.numel()
        position.elapsed += time.monotonic() - began

    def loss(self, batch: Batch, progress: float) -> tuple[Tensor, float]:
        """Return the cross entropy of the answer tokens, and the share of answers reproduced in full."""
        model = cast(ShopModel, self.model)
        hidden, _ = model.hidden(batch.tokens)
        logits = model.logits(hidden.flatten(0, 1)[batch.places]).float()
        wrong = (logits.argmax(-1) != batch.targets).long()
        per_answer = torch.zeros(int(batch.answers.max()) + 1, dtype=torch.long)
        exact = float((per_answer.index_add_(0, batch.answers, wrong)[1:] == 0).float().mean())
        return F.cross_entropy(logits, batch.targets), exact

    def update(self, progress: float) -> None:
        """Apply the gradients."""
        share = rate_share(self.recipe, self.position.step, progress)
        self.optimizer.step(self.model, self.recipe.matrix_lr * share, self.recipe.vector_lr * share)

    def status(self, progress: float) -> str:
        """Return one line of progress."""
        position, left = self.position, self.recipe.minutes * max(0.0, 1 - progress)
        return (
            f"step {position.step:5d} {progress:4.0%}  loss {position.loss:.3f}  exact {position.exact:.3f}  "
            f"{self.levels[position.level].rows} rows  "
            f"{position.tokens / max(position.elapsed, 1e-9):,.0f} tok/s  {left:.0f} min left"
        )

    def state(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"], self.model)

    def save(self, path: Path) -> None:
        """Write the checkpoint in one piece."""
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        torch.save({"position": vars(self.position), **self.state()}, fresh)
        os.replace(fresh, path)

    def load(self, path: Path) -> None:
        state = torch.load(path, weights_only=True)
        self.position, self._pool = Position(**state["position"]), []
        self.restore(state)

    def export(self, folder: Path) -> Path:
        return export_model(folder, self.recipe.model, self.optimizer.weights, self.tokenizer)

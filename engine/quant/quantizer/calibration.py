"""Calibration: run texts through the model and sum over the inputs of every matrix.

For a matrix with inputs x (one row for each token) three figures are enough for all the methods here:

    gram      sum of x x^T, [K, K]: the error of a rounded matrix is tr(D gram D^T) with D = rounded - original,
              which is the sum of |D x|^2 over all tokens, without keeping a single one of them
    abs_max   largest |x| of each channel     (SmoothQuant, static fp8)
    abs_mean  mean |x| of each channel        (AWQ)

The model is taken layer by layer: a layer is measured and quantised, and the next one sees what it then puts out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from engine.config import ConfigError
from engine.zoo.corpus import conversations, to_text
from engine.zoo.tokenizer import render_chat
from prep_common.text_file import UnreadableFile, read_text

CORPUS_SEED = 7
MAX_TOKENS = 512  # Tokens of one sample; longer texts are cut


@dataclass
class InputStatistics:
    """Sums over the inputs of one matrix."""

    gram: Tensor  # float64 [K, K]
    abs_max: Tensor  # [K]
    abs_sum: Tensor  # [K]
    num_tokens: int = 0

    @classmethod
    def zeros(cls, columns: int) -> InputStatistics:
        gram = torch.zeros(columns, columns, dtype=torch.float64)
        return cls(gram, torch.zeros(columns), torch.zeros(columns))

    @property
    def abs_mean(self) -> Tensor:
        return self.abs_sum / max(1, self.num_tokens)

    def add(self, x: Tensor) -> None:
        """Count the rows of x [..., K]."""
        rows = x.detach().reshape(-1, x.shape[-1]).float()
        self.gram += (rows.T @ rows).double()
        self.abs_max = torch.maximum(self.abs_max, rows.abs().amax(0))
        self.abs_sum += rows.abs().sum(0)
        self.num_tokens += len(rows)

    def divide(self, scale: Tensor) -> None:
        """The inputs were divided by scale [K]."""
        self.gram /= torch.outer(scale, scale).double()
        self.abs_max = self.abs_max / scale
        self.abs_sum = self.abs_sum / scale

    def squared_error(self, difference: Tensor) -> float:
        """Sum over all tokens of |difference x|^2, for a matrix [N, K]."""
        wide = difference.double()
        return float(((wide @ self.gram) * wide).sum())


@contextmanager
def watch_inputs(modules: dict[str, nn.Linear], see: Callable[[str, Tensor], None]) -> Iterator[None]:
    """Call `see` with the name and the input of every module that runs in the block."""
    handles = [
        module.register_forward_pre_hook(lambda _, inputs, name=name: see(name, inputs[0]))
        for name, module in modules.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def watched_inputs(modules: dict[str, nn.Linear]) -> Iterator[dict[str, InputStatistics]]:
    """Statistics of what goes into the modules while the block runs."""
    statistics = {name: InputStatistics.zeros(module.in_features) for name, module in modules.items()}
    with watch_inputs(modules, lambda name, x: statistics[name].add(x)):
        yield statistics


def calibration_texts(source: str | Path, count: int) -> list[str]:
    """Texts to calibrate with: conversations of the shop ("in-domain"), or the lines of a file.

    Of a JSONL file (.jsonl) each line is an object with `text`, or with `messages`; of any other, a text.
    """
    if str(source) == "in-domain":
        return [to_text(conversation) for conversation in conversations("train", CORPUS_SEED, count)]
    path = Path(source)
    try:
        lines = read_text(path).splitlines()
    except UnreadableFile as error:
        raise ConfigError(f"calibration: {error} (a text or JSONL file, or in-domain)") from None
    texts = [
        _text_of(line, f"{path}, line {number}") if path.suffix == ".jsonl" else line
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not texts:
        raise ConfigError(f"{path} holds no text to calibrate with")
    return texts[:count]


def _text_of(line: str, where: str) -> str:
    try:
        entry: Any = json.loads(line)
        if "text" in entry:
            return entry["text"]
        return render_chat(entry["messages"], add_generation_prompt=False)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"{where} is not a JSON object with 'text' or 'messages'") from None


def tokenized(texts: list[str], tokenizer: Tokenizer) -> list[Tensor]:
    """Token ids of every text, int64 [1, n]."""
    samples = [tokenizer.encode(text).ids[:MAX_TOKENS] for text in texts]
    return [torch.tensor([ids]) for ids in samples if ids]

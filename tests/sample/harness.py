"""A sampler fed by hand: rows of (parameters, prompt, output) without an engine around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from engine.core.sched_output import RequestInit
from engine.sample.processors import LogitsProcessor, SampleBatch
from engine.sample.sampler import Sampler, SamplerOutput
from engine.sampling_params import SamplingParams


@dataclass
class Row:
    """One request that waits for a token."""

    params: SamplingParams
    seed: int = 0
    prompt: Sequence[int] = (0,)
    output: Sequence[int] = ()
    eos: Sequence[int] = ()

    @property
    def init(self) -> RequestInit:
        tokens = [*self.prompt, *self.output]
        return RequestInit(tokens, len(self.prompt), self.params, frozenset(self.eos), self.seed)


def params(**settings: Any) -> SamplingParams:
    bad_words = settings.pop("bad_words_token_ids", [])
    made = SamplingParams(**settings)
    made.bad_words_token_ids = bad_words
    return made


def batch_of(rows: Sequence[Row], slots: Sequence[int] | None = None, width: int = 64) -> SampleBatch:
    slots = list(range(len(rows))) if slots is None else slots
    table = np.full((max(slots) + 1, width), -7, np.int32)
    for slot, row in zip(slots, rows, strict=True):
        tokens = [*row.prompt, *row.output]
        table[slot, : len(tokens)] = tokens
    return SampleBatch(
        slots=np.array(slots),
        lengths=np.array([len(row.prompt) + len(row.output) for row in rows]),
        num_prompt_tokens=np.array([len(row.prompt) for row in rows]),
        token_ids=table,
    )


def sample(
    logits: torch.Tensor,
    rows: Sequence[Row],
    slots: Sequence[int] | None = None,
    processors: Sequence[type[LogitsProcessor]] = (),
) -> SamplerOutput:
    """One step of a fresh sampler over float32 logits [S, V], which stay as they are."""
    batch = batch_of(rows, slots)
    sampler = Sampler(logits.shape[1], int(batch.slots.max()) + 1, processors=processors)
    for slot, row in zip(batch.slots.tolist(), rows, strict=True):
        sampler.add_request(slot, row.init)
    return sampler(logits.clone(), batch)


def assert_distributed_as(counts: np.ndarray, probs: np.ndarray) -> None:
    """Chi-square: fails about once in 30,000 random trials, and the seeds are fixed."""
    total = counts.sum()
    assert not counts[probs == 0].any(), (
        f"tokens of probability 0 were sampled: {np.flatnonzero(counts * (probs == 0))}"
    )
    expected = probs * total
    rare = expected < 5  # pooled into one class
    observed = np.append(counts[~rare], counts[rare].sum())
    wanted = np.append(expected[~rare], expected[rare].sum())
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    statistic = float(((observed - wanted) ** 2 / wanted).sum())
    freedom = max(1, len(wanted) - 1)
    # Wilson-Hilferty's normal approximation of the quantile at 4 sigma.
    limit = freedom * (1 - 2 / (9 * freedom) + 4 * (2 / (9 * freedom)) ** 0.5) ** 3
    assert statistic <= limit, f"chi-square {statistic:.1f} > {limit:.1f} with {freedom} degrees of freedom"

"""The engine's sampler without an engine: one row per draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from engine.core.sched_output import RequestInit
from engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    import torch

    from engine.sample.sampler import Sampler


def logits_of(probs: Sequence[float]) -> torch.Tensor:
    """Return fp32 [V] logits whose softmax at temperature 1 is proportional to `probs`."""
    import torch

    return torch.tensor(list(probs), dtype=torch.float64).log().float()


def sampler_for(vocab_size: int, rows: int, prompt: Sequence[int] = (0,), **params: Any) -> Sampler:
    """Return a sampler for `rows` requests with equal parameters and seeds 0, 1, 2 ..."""
    from engine.sample.sampler import Sampler

    sampler = Sampler(vocab_size, rows)
    settings = SamplingParams(**params)
    for slot in range(rows):
        sampler.add_request(slot, RequestInit(list(prompt), len(prompt), settings, frozenset(), slot))
    return sampler


def draw(logits: torch.Tensor, rows: int, **params: Any) -> list[int]:
    """Return `rows` independent draws from logits fp32 [V] with the same parameters."""
    import numpy as np

    from engine.sample.processors import SampleBatch

    sampler = sampler_for(len(logits), rows, **params)
    slots = np.arange(rows)
    ones = np.ones(rows, np.int64)
    batch = SampleBatch(slots, ones, ones, np.zeros((rows, 2), np.int32))
    return list(sampler(logits.repeat(rows, 1), batch).token_ids.tolist())

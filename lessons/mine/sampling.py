"""The learner's `filter_probs` as a logits processor: temperature, top-k and top-p of the requests that use them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.core.sched_output import RequestInit
from engine.sample.processors import SampleBatch
from lessons.mine.errors import PieceError, ask
from lessons.mine.workspace import current


class MineFilter:
    """Replace logits by the logarithms of the learner's probabilities; the engine adds its seeded noise.

    Greedy rows, min_p and structured outputs stay with the engine's sampler.
    """

    filters = True

    def __init__(self, vocab_size: int, num_slots: int, device: torch.device) -> None:
        piece = current()["sampler"]
        self._says, self._filter_probs = piece.says, piece.item
        self._params: dict[int, tuple[float, int, float]] = {}

    def add_request(self, slot: int, init: RequestInit) -> bool:
        params = init.sampling_params
        filters = params.top_k > 0 or params.top_p < 1
        if params.is_greedy or not filters or params.min_p or params.structured_outputs is not None:
            return False
        self._params[slot] = (params.temperature, max(params.top_k, 0), params.top_p)
        return True

    def remove_request(self, slot: int) -> None:
        del self._params[slot]

    def apply(self, logits: Tensor, rows: np.ndarray, batch: SampleBatch) -> None:
        for row, slot in zip(rows.tolist(), batch.slots[rows].tolist(), strict=True):
            temperature, top_k, top_p = self._params[slot]
            values = logits[row].tolist()
            where = f"temperature {temperature:g}, top_k {top_k}, top_p {top_p:g}"
            probs = ask(self._says, where, self._filter_probs, values, temperature, top_k, top_p)
            self._check(probs, len(values), where)
            logs = torch.tensor(probs, dtype=torch.float64).log() * temperature  # ops.sample divides by it
            logits[row] = logs.to(logits.dtype)

    def _check(self, probs: Any, size: int, where: str) -> None:
        if len(probs) != size:
            raise PieceError(self._says, "one probability per token", f"{len(probs)} of {size} ({where})")
        total = sum(probs)
        if not math.isfinite(total) or min(probs) < 0 or abs(total - 1) > 1e-3:
            detail = f"sum {total:g}, smallest {min(probs):g} ({where})"
            raise PieceError(self._says, "probabilities are 0 or more and add up to 1", detail)

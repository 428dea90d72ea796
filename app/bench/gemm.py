"""Time a model's matrix products alone: the lower bound of every step.

The products are the model's own layers with their own weights, one after the other, so that they leave
the processor's caches as the real run does. Everything else a step does (attention, norms, sampling,
Python) is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from engine.engine_core import EngineCore
from engine.exec.uniproc import worker_of
from engine.layers.embedding import ParallelLMHead
from engine.layers.linear import Linear

MAX_SIZES = 12
SECONDS_PER_SIZE = 0.25
MIN_REPEATS = 5


class GemmFloor:
    """Seconds of matrix products for any step, from measurements at a few batch sizes."""

    def __init__(self, core: EngineCore) -> None:
        worker = worker_of(core)
        products = [
            module for module in cast(nn.Module, worker.model).modules() if isinstance(module, Linear)
        ]
        self._layers = [module for module in products if not isinstance(module, ParallelLMHead)]
        self._heads = [module for module in products if isinstance(module, ParallelLMHead)]
        self._device = worker.device
        self._dtype = getattr(torch, core.config.model.dtype)

    def seconds(self, steps: Iterable[tuple[int, int]]) -> float:
        """Return the sum over steps, each given as (tokens computed, rows that sample)."""
        steps = list(steps)
        layers = self._times(self._layers, [tokens for tokens, _ in steps])
        heads = self._times(self._heads, [rows for _, rows in steps])
        return float(layers.sum() + heads.sum())

    def _times(self, modules: Sequence[Linear], sizes: list[int]) -> np.ndarray:
        """Return seconds for each size, measured at `MAX_SIZES` of them and interpolated between."""
        distinct = sorted({size for size in sizes if size > 0})
        if not distinct or not modules:
            return np.zeros(len(sizes))
        spaced = np.linspace(0, len(distinct) - 1, MAX_SIZES).round().astype(int)
        chosen = sorted({distinct[index] for index in spaced})
        measured = [self._measure(modules, size) for size in chosen]
        return np.where(np.asarray(sizes) > 0, np.interp(sizes, chosen, measured), 0.0)

    @torch.inference_mode()
    def _measure(self, modules: Sequence[Linear], size: int) -> float:
        """Return the median seconds of all products at one batch size."""
        inputs: dict[int, Tensor] = {
            width: torch.randn(size, width, dtype=self._dtype, device=self._device)
            for width in {module.in_features for module in modules}
        }
        times: list[float] = []
        while len(times) < MIN_REPEATS or sum(times) < SECONDS_PER_SIZE:
            start = perf_counter()
            for module in modules:
                module(inputs[module.in_features])
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            times.append(perf_counter() - start)
        return float(np.median(times))

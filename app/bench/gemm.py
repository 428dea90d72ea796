"""How long a model's matrix products take on their own: the floor under every step.

The products are run with the model's own weights, layer after layer, so that they leave the caches as
the real run does. Everything else a step does (attention, norms, sampling, Python) is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter

import numpy as np
import torch
from torch import Tensor, nn

from engine.engine_core import EngineCore
from engine.layers.embedding import LMHead
from engine.layers.linear import Linear

MAX_SIZES = 12
SECONDS_PER_SIZE = 0.25
MIN_REPEATS = 5


class GemmFloor:
    """Seconds of matrix products for any step, from measurements at a few sizes."""

    def __init__(self, core: EngineCore) -> None:
        model = core.executor.worker.model
        self._device = core.executor.worker.device
        modules = list(model.modules())
        self._linears = [module for module in modules if isinstance(module, Linear)]
        self._heads = [module for module in modules if isinstance(module, LMHead)]

    def seconds(self, steps: Iterable[tuple[int, int]]) -> float:
        """Sum over steps, each given as (tokens computed, rows that sample)."""
        steps = list(steps)
        layers = self._times(self._linears, [tokens for tokens, _ in steps])
        heads = self._times(self._heads, [rows for _, rows in steps])
        return float(layers.sum() + heads.sum())

    def _times(self, modules: list[nn.Module], sizes: list[int]) -> np.ndarray:
        """Seconds for each size, measured at `MAX_SIZES` of them and interpolated between."""
        distinct = sorted({size for size in sizes if size > 0})
        if not distinct or not modules:
            return np.zeros(len(sizes))
        chosen = sorted(
            {distinct[i] for i in np.linspace(0, len(distinct) - 1, MAX_SIZES).round().astype(int)}
        )
        measured = [self._measure(modules, size) for size in chosen]
        return np.where(np.asarray(sizes) > 0, np.interp(sizes, chosen, measured), 0.0)

    @torch.inference_mode()
    def _measure(self, modules: list[nn.Module], size: int) -> float:
        """Median seconds of all the products at one batch size."""
        weights = [module.weight for module in modules]
        inputs: dict[int, Tensor] = {}
        for weight in weights:
            inputs.setdefault(weight.shape[1], torch.randn(size, weight.shape[1]).to(weight))
        times: list[float] = []
        while len(times) < MIN_REPEATS or sum(times) < SECONDS_PER_SIZE:
            start = perf_counter()
            for weight in weights:
                nn.functional.linear(inputs[weight.shape[1]], weight)
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            times.append(perf_counter() - start)
        return float(np.median(times))

"""The shapes that are measured: layers of real models, as the engine calls them.

On a CPU two small models in fp32, on a GPU Llama-8B in bf16. Every workload makes as many copies of its data as asked
for, like the layers of a model: attention reads one cache of all layers, so that copy i is `cache[:, i]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from kernels.check.case import Case


@dataclass(frozen=True, slots=True)
class Model:
    """The sides of a model's layers."""

    name: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    block_size: int


SHOP = Model("shop", 256, 8, 4, 32, 640, 2048, 32)
MEDIUM = Model("386M", 896, 14, 2, 64, 4864, 32_000, 32)
LLAMA = Model("Llama-8B", 4096, 32, 8, 128, 14_336, 128_256, 16)


@dataclass(frozen=True, slots=True)
class Workload:
    """A call worth measuring."""

    op: str
    name: str
    make: Callable[[int], list[Case]]
    """Return this many copies, each in its own memory."""
    without: tuple[str, ...] = ()
    """Implementations and yardsticks that would need too much memory or time here."""


Recipe = Callable[[], Any]
"""Makes one argument of a call; each copy of the data gets another one."""


def of_recipes(op: str, name: str, *arguments: Any) -> Workload:
    """Build a workload from the arguments of its call: recipes, or values that all copies share."""

    def copies(number: int) -> list[Case]:
        made = (
            (argument() if callable(argument) else argument for argument in arguments) for _ in range(number)
        )
        return [Case(op, name, tuple(args)) for args in made]

    return Workload(op, name, copies)


class Maker:
    """Recipes of random tensors on the device. Values do not matter for time, as long as they are finite."""

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        self.device = device
        self.dtype = dtype
        self.gpu = device == "cuda"
        self.models: tuple[Model, ...] = (LLAMA,) if self.gpu else (SHOP, MEDIUM)
        self.largest = self.models[-1]
        self.many = 8192 if self.gpu else 1024
        """Tokens of a prefill step."""

    def normal(self, *shape: int, dtype: torch.dtype | None = None, scale: float = 1) -> Recipe:
        return lambda: torch.randn(shape, device=self.device).mul_(scale).to(dtype or self.dtype)

    def uniform(self, low: float, high: float, *shape: int) -> Recipe:
        return lambda: torch.rand(shape, device=self.device) * (high - low) + low

    def constant(self, value: float, *shape: int, dtype: torch.dtype = torch.float32) -> Recipe:
        return lambda: torch.full(shape, value, dtype=dtype, device=self.device)

    def integers(self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Recipe:
        return lambda: torch.randint(low, high, shape, device=self.device).to(dtype)

    def sizes(self) -> Iterator[tuple[Model, int]]:
        """Yield every model with the tokens of a decode step and of a prefill step."""
        for model in self.models:
            yield from ((model, 32), (model, self.many))


Calls = Iterator[tuple[Any, ...]]
"""Name of a workload and the arguments of its call."""

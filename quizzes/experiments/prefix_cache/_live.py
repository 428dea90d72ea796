"""Recording of a live engine's scheduler: requests, step statistics, blocks in use."""

from __future__ import annotations

from dataclasses import replace
from typing import Any


class Watched:
    """Records from now on. `llm`: an engine with one scheduler."""

    def __init__(self, llm: Any) -> None:
        self.requests: list[Any] = []
        """In order of arrival."""
        self.steps: list[Any] = []
        """StepStats, one per step."""
        self.blocks: list[int] = []
        """Blocks in use during each step, before finished requests free theirs."""
        self._scheduler = llm.llm_engine.engine_core.scheduler
        self._add, self._update = self._scheduler.add, self._scheduler.update
        self._scheduler.add, self._scheduler.update = self.add, self.update

    def add(self, request: Any) -> None:
        self.requests.append(request)
        self._add(request)

    def update(self, *args: Any) -> Any:
        self.blocks.append(self._scheduler.kv.pool.num_used)
        outputs = self._update(*args)
        self.steps.append(replace(self._scheduler.stats))
        return outputs

    def total(self, name: str) -> int:
        """Return the sum of a counter over all steps."""
        return sum(getattr(stats, name) for stats in self.steps)

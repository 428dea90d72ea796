"""Counter of the positions at which a grammar masked the vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    pass


class MaskedRows:
    """Counts masked rows of an engine from now on."""

    def __init__(self, llm: Any) -> None:
        self.count = 0
        self._core = llm.llm_engine.engine_core
        self._step = self._core.step
        self._core.step = self._counting

    def _counting(self) -> Any:
        outputs = self._step()
        self.count += self._core.scheduler.stats.num_masked_rows
        return outputs

"""What an experiment is given: randomness, engines, a place for a trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from quizzes.experiments.core_engine import CoreEngine

if TYPE_CHECKING:
    from engine import LLM


@dataclass
class Context:
    """Made anew for every run. An exact experiment uses no other source of chance or time."""

    seed: int = 0
    trace: Path | None = None
    """Where the learner wants a trace of the run; given to the first engine that is made with traced=True."""
    rng: Random = field(init=False)
    traced: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.rng = Random(self.seed)

    def core(self, *, traced: bool = False, **settings: Any) -> CoreEngine:
        """The engine's real scheduler and KV manager with scripted outputs: exact, in milliseconds, no torch."""
        return CoreEngine(trace=self._trace_for(traced), **settings)

    def llm(self, model: str = "shop", *, traced: bool = False, **settings: Any) -> LLM:
        """A real engine with a model, to be closed by the experiment (`with ctx.llm() as llm`).

        Block size 16 and a small KV cache unless told otherwise, so that it starts in a fraction of a second.
        """
        from engine import LLM

        trace = self._trace_for(traced)
        if trace is not None:
            settings["trace"] = str(trace)
        return LLM(model, **{"block_size": 16, "num_gpu_blocks_override": 512, **settings})

    def _trace_for(self, traced: bool) -> Path | None:
        if not traced or self.trace is None or self.traced:
            return None
        self.traced = True
        return self.trace

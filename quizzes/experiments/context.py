"""Context of a run: randomness, engines, a place for a trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from engine.sampling_params import SamplingParams
from engine.sim.hardware import get_hardware
from engine.sim.memory import Deployment, require_room
from engine.sim.models import get_model
from quizzes.experiments.core_engine import CoreEngine


@dataclass
class Context:
    """Created for every run. An exact experiment uses no other source of randomness or time."""

    seed: int = 0
    trace: Path | None = None
    """File for a trace of the run; the first engine made with traced=True writes it."""
    rng: Random = field(init=False)
    traced: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.rng = Random(self.seed)

    def core(self, *, traced: bool = False, **settings: Any) -> CoreEngine:
        """Return the real scheduler and KV manager with scripted outputs: exact, in milliseconds, without torch."""
        return CoreEngine(trace=self._trace_for(traced), **settings)

    def llm(self, model: str = "shop", *, traced: bool = False, **settings: Any) -> Any:
        """Return an LLM, which the experiment closes (`with ctx.llm() as llm`); untyped, as experiments read internals.

        By default the block size is 16 and the KV cache small, so that it starts in a fraction of a second.
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


def greedy(max_tokens: int, **more: Any) -> SamplingParams:
    """Return parameters of a greedy request that ignores end-of-sequence."""
    return SamplingParams(temperature=0, max_tokens=max_tokens, **{"ignore_eos": True, **more})


def generate(llm: Any, prompts: Any, params: Any, **more: Any) -> list[Any]:
    """Return the first completion of each prompt; a prompt is a text or a list of token ids."""
    return [output.outputs[0] for output in llm.generate(prompts, params, use_tqdm=False, **more)]


def worker_of(llm: Any) -> Any:
    """Return the worker of an LLM without parallelism, to read its tensors."""
    return llm.llm_engine.engine_core.executor.worker


def deploy(model: str, hardware: str, *, holds: int | None = None, **settings: Any) -> Deployment:
    """Return a named model on named hardware for the simulator's cost model, with these settings of Deployment.

    holds: KV tokens that the devices hold at once. Raises DoesNotFit if they and the weights exceed the memory, so that
    no experiment prices what cannot exist. None: no check, for those that plan the memory or whose result tells.
    """
    deployment = Deployment(get_model(model), get_hardware(hardware), **settings)
    if holds is not None:
        require_room(deployment, holds)
    return deployment

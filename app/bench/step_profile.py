"""Profile a step: a clock on every part, inside the run.

Functions are wrapped for one round and put back afterwards. Time belongs to the innermost part that is running,
so the parts add up to the steps and nothing is counted twice:

    step      |--------------------------------------------------------------|
    schedule  |=====|
    input           |===|                                             |==|
    model               |=|   |=|   |=|       |=|   ...   |=|
    norm                  |===|
    gemm                        |===|             |===|
    attention                           |=======|
    sampling                                                |=========|
    update                                                                |==|

A replayed decode step has no Python between its kernels; there the kernels' own clocks give their time. A fused kernel
is one part: `norm_linear` counts as a matrix product, with the norm, rotation or activation in it.

A wrapped call costs under a microsecond and a step makes some ten calls per layer; the timed rounds of a benchmark
run without. Wall time on the host is right for a CPU, where an operation is over when it returns, and useless for
a GPU, where the operation has only begun.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from time import perf_counter
from typing import Any

from engine.engine_core import EngineCore
from engine.exec.uniproc import worker_of
from kernels import ops

PARTS = {
    "gemm": "matrix products, and what is fused with them",
    "attention": "attention and KV write",
    "norm": "norms",
    "rope": "rotary positions",
    "activation": "activation",
    "model": "rest of the model",
    "sampling": "sampling",
    "input": "step input and output",
    "schedule": "schedule",
    "update": "update",
    "step": "rest of the step",
}
"""Part -> its description. Attention includes planning (`build`)."""

_OPS = {
    "gemm": "linear gated_linear norm_linear int4_linear int8_linear fp8_linear grouped_linear lora_shrink lora_expand",
    "norm": "rms_norm fused_add_rms_norm",
    "rope": "rotary_embedding",
    "activation": "silu_and_mul",
    "attention": "reshape_and_cache paged_attention",
}
_KERNELS = {
    "gemm": "gemm quantised_gemm lora",
    "attention": "attention kv_write",
    "norm": "norm",
    "rope": "rotary",
    "activation": "activation",
    "model": "embedding",
    "sampling": "sampling",
}
_PART_OF_KERNEL = {kernel: part for part, names in _KERNELS.items() for kernel in names.split()}


@dataclass
class StepProfile:
    """Seconds by part; the innermost part that runs is charged."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    steps: int = 0
    _running: list[str] = field(default_factory=list, repr=False)
    _since: float = field(default=0.0, repr=False)

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    def shares(self) -> dict[str, float]:
        """Part -> share of the time spent in steps. The shares add up to 1."""
        total = self.total
        return {part: seconds / total if total else 0.0 for part, seconds in self.seconds.items()}

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` with its time charged to `part`, less the time of inner parts."""

        @wraps(function)
        def with_clock(*args: Any, **kwargs: Any) -> Any:
            self._switch()
            self._running.append(part)
            try:
                return function(*args, **kwargs)
            finally:
                self._switch()
                self._running.pop()

        return with_clock

    def _switch(self) -> None:
        """Charge the time since the last switch to the part that was running."""
        now = perf_counter()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now


@contextmanager
def profile_steps(core: EngineCore) -> Iterator[StepProfile]:
    """Put clocks on an engine's parts inside the block."""
    worker = worker_of(core)
    if worker.device.type != "cpu":
        raise ValueError(f"a profile by wall time needs the engine on a CPU, it runs on {worker.device}")
    profile = StepProfile()
    places = [
        (core, "step", "step"),
        (core.scheduler, "schedule", "schedule"),
        (core.scheduler, "update", "update"),
        (core.executor, "submit", "input"),
        (worker.model, "forward", "model"),
        (worker.model, "compute_logits", "model"),
        *((worker.backend, name, "attention") for name in ("build", "write", "attend")),
        (type(worker.runner.sampler), "__call__", "sampling"),
        *((ops, name, part) for part, names in _OPS.items() for name in names.split()),
    ]
    undo: list[Callable[[], None]] = []
    try:
        if worker.runner.replays:
            undo.append(_clock_replays(profile))
        for owner, name, part in places:
            undo.append(_replace(owner, name, profile.timed(part, getattr(owner, name))))
        count = core.step

        def counted() -> Any:
            profile.steps += 1
            return count()

        undo.append(_replace(core, "step", counted))
        yield profile
    finally:
        for restore in reversed(undo):
            restore()


def _clock_replays(profile: StepProfile) -> Callable[[], None]:
    """Put a clock on replayed kernels; return a function that removes it and charges them to their parts."""
    replay, clock = ops.CPUGraph.replay, ops.KernelClock()

    def with_clock(graph: ops.CPUGraph) -> None:
        clock.start()
        try:
            replay(graph)
        finally:
            clock.stop()

    restore = _replace(ops.CPUGraph, "replay", profile.timed("model", with_clock))

    def finish() -> None:
        restore()
        for kernel, own in clock.seconds().items():
            profile.seconds[_PART_OF_KERNEL[kernel]] += own
            profile.seconds["model"] -= own

    return finish


def _replace(owner: Any, name: str, value: Callable[..., Any]) -> Callable[[], None]:
    """Set an attribute; return a function that restores it, whether it was the object's or its class's."""
    if name in vars(owner):
        previous = vars(owner)[name]
        setattr(owner, name, value)
        return lambda: setattr(owner, name, previous)
    setattr(owner, name, value)
    return lambda: delattr(owner, name)

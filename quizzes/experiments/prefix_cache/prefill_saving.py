"""E07: what a hit is worth in milliseconds on hardware: the same prompt with a cold and with a warm prefix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from engine.sim.hardware import get_hardware
from engine.sim.memory import Deployment
from engine.sim.models import get_model
from engine.sim.run import make_engine
from engine.sim.workload import SimRequest
from quizzes.experiments import Context, experiment


@dataclass(frozen=True)
class Saving:
    """Time to the first token on an idle engine, from the roofline of engine.sim.cost."""

    cold_ms: Annotated[float, "ms"]
    warm_ms: Annotated[float, "ms"]
    saved_ms: Annotated[float, "ms"]
    speedup: Annotated[float, "x"]
    cached_tokens: Annotated[int, "tokens"]
    flops_saved: Annotated[float, "FLOP"]
    """Of the linear layers: 2 x parameters x cached tokens."""


@experiment("E07")
def prefill_saving(
    ctx: Context,
    *,
    model: str = "llama-3-8b",
    hardware: str = "a10g",
    prompt: Annotated[int, Field(ge=2, le=32_000)] = 1500,
    prefix: Annotated[int, Field(ge=0, le=32_000)] = 500,
    tp: Annotated[int, Field(ge=1, le=8)] = 1,
) -> Saving:
    """TTFT of a prompt whose first `prefix` tokens are cached, against the same prompt on a cold cache."""
    prefix = min(prefix, prompt)
    shape = get_model(model)
    deployment = Deployment(shape, get_hardware(hardware), tp=tp, max_model_len=prompt + 16)
    engine = make_engine(deployment, num_blocks=3 * (prompt // 16 + 3))
    engine.run([SimRequest(i, 1000.0 * i, prompt, 1, 0, prefix) for i in range(2)])
    cold, warm = sorted(engine.recorder.finished, key=lambda record: record.arrival)
    return Saving(
        cold_ms=1e3 * cold.ttft,
        warm_ms=1e3 * warm.ttft,
        saved_ms=1e3 * (cold.ttft - warm.ttft),
        speedup=cold.ttft / warm.ttft,
        cached_tokens=warm.num_cached_tokens,
        flops_saved=2.0 * (shape.common_params + shape.active_routed_params) * warm.num_cached_tokens,
    )

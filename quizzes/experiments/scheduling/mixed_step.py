"""E15: decodes and a chunk of a prompt in one step, or in two: what sharing the weights' bytes saves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment
from quizzes.experiments.scheduling._cluster import Gpu, Model, deployment


@dataclass(frozen=True)
class Mixed:
    """Roofline prices of single steps."""

    decode_ms: Annotated[float, "ms"]
    chunk_ms: Annotated[float, "ms"]
    mixed_ms: Annotated[float, "ms"]
    saving: Annotated[float, "share"]
    """Of the time of two steps."""
    decode_intensity: Annotated[float, "FLOP/byte"]
    """Of the linear layers."""
    chunk_intensity: Annotated[float, "FLOP/byte"]
    ridge: Annotated[float, "FLOP/byte"]
    decode_is_memory_bound: bool
    chunk_is_compute_bound: bool


@experiment("E15", "E24")
def mixed_step(
    ctx: Context,
    *,
    decodes: Annotated[int, Field(ge=1, le=512)] = 32,
    context: Annotated[int, Field(ge=1, le=32_000)] = 1000,
    chunk: Annotated[int, Field(ge=2, le=32_000)] = 512,
    model: Model = "llama-3.1-8b",
    gpu: Gpu = "h100",
) -> Mixed:
    """A decode step, a chunk's step, and both in one. Bound: arithmetic intensity against the card's ridge point,
    both at the rates that kernels reach."""
    from engine.sim.cost import CostModel, StepLoad, pairs_of

    replica = deployment(model, gpu)
    cost = CostModel(replica)
    pairs = pairs_of(0, chunk, None)
    alone = StepLoad(decodes, decodes, decodes, decodes * context)
    prompt = StepLoad(1, chunk, 0, 0, pairs, chunk)
    both = StepLoad(decodes + 1, decodes + chunk, decodes, decodes * context, pairs, chunk)
    seconds = [cost.seconds(load) for load in (alone, prompt, both)]
    ridge = cost.rates.flops / cost.rates.bytes_per_s
    return Mixed(
        1000 * seconds[0],
        1000 * seconds[1],
        1000 * seconds[2],
        1 - seconds[2] / (seconds[0] + seconds[1]),
        cost.intensity(alone),
        cost.intensity(prompt),
        ridge,
        cost.intensity(alone) < ridge,
        cost.intensity(prompt) > ridge,
    )

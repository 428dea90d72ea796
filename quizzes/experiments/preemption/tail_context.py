"""E53: can one long request make a step need more memory than was measured at the start? Peak tokens, rows, blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Ask, Context, experiment


@dataclass(frozen=True)
class Peaks:
    """Activations grow with the tokens of a step, KV with the blocks in use: both have a bound that is set at boot."""

    peak_step_tokens: Annotated[int, "tokens"]
    budget: Annotated[int, "tokens"]
    peak_blocks: Annotated[int, "blocks"]
    num_blocks: Annotated[int, "blocks"]
    num_preemptions: int
    finished: Annotated[int, "requests"]
    rejected: Annotated[int, "requests"]
    over_bounds: bool
    """A step held more tokens than its budget, or the pool gave more blocks than it has."""
    kv_gib: Annotated[float, "GiB"]
    """Of the real card: what the pool takes at this gpu_memory_utilization."""
    outside_gib: Annotated[float, "GiB"]
    """Of the card, left to everybody else (other processes, fragmentation, what was not profiled)."""


@experiment("E53")
def tail_context(
    ctx: Context,
    *,
    utilization: Annotated[float, Field(gt=0.3, le=1)] = 0.95,
    model: str = "llama-3.1-8b",
    gpu: str = "h100",
    chats: Annotated[int, Field(ge=0, le=64)] = 20,
    tail_prompt: Annotated[int, Field(ge=1, le=120_000)] = 30_000,
    budget: Annotated[int, Field(ge=64, le=16_384)] = 2048,
    num_blocks: Annotated[int, Field(ge=10, le=20_000)] = 2500,
) -> Peaks:
    """`chats` ordinary requests and one with a very long prompt, in a pool of `num_blocks` blocks of 16 tokens."""
    from engine.core.errors import RequestRejected
    from engine.sim.hardware import GIB, get_hardware
    from engine.sim.memory import Deployment, plan_memory
    from engine.sim.models import get_model

    card = get_hardware(gpu)
    plan = plan_memory(
        Deployment(get_model(model), card, gpu_memory_utilization=utilization, max_num_batched_tokens=budget)
    )
    engine = ctx.core(
        num_blocks=num_blocks, max_num_batched_tokens=budget, enable_prefix_caching=False, traced=True
    )
    rejected = 0
    for ask in [*(Ask(f"chat{i}", 800, 60) for i in range(chats)), Ask("tail", tail_prompt, 60)]:
        try:
            engine.add(ask)
        except RequestRejected:
            rejected += 1
    engine.run()
    peak_tokens = max((step.num_tokens for step in engine.steps), default=0)
    peak_blocks = num_blocks - min((step.free_blocks for step in engine.steps), default=num_blocks)
    return Peaks(
        peak_step_tokens=peak_tokens,
        budget=budget,
        peak_blocks=peak_blocks,
        num_blocks=num_blocks,
        num_preemptions=engine.num_preemptions,
        finished=sum(o.finished is not None for o in engine.outcomes.values()),
        rejected=rejected,
        over_bounds=peak_tokens > budget or peak_blocks > num_blocks,
        kv_gib=plan.kv_budget / GIB,
        outside_gib=(plan.total - plan.usable) / GIB,
    )

"""E15: in milliseconds, what a long prompt does to those who decode, and what its own first token costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from quizzes.experiments import Context, experiment
from quizzes.experiments.scheduling._cluster import Gpu, Model, deployment

if TYPE_CHECKING:
    from engine.core.sched_output import SchedulerOutput
    from engine.sim.cost import StepLoad

TICK = 0.05
"""Virtual seconds between two looks at who has got how far."""


@dataclass(frozen=True)
class Interference:
    """By budget, in the order given. Virtual time."""

    budgets: Annotated[list[int], "tokens"]
    ttft_ms: Annotated[list[float], "ms"]
    """Of the long prompt."""
    worst_gap_ms: Annotated[list[float], "ms"]
    """Longest time between two tokens of a request that decodes."""
    quiet_gap_ms: Annotated[float, "ms"]
    """The same without the long prompt, on average."""
    alone_ms: Annotated[float, "ms"]
    """TTFT of the long prompt on an empty engine with the largest budget."""
    chunks: Annotated[list[int], "steps"]
    short_ttft_ms: Annotated[list[float], "ms"]
    """Of a short request that arrives just behind the long one."""


@experiment("E15")
def prefill_interference(
    ctx: Context,
    *,
    budgets: Annotated[list[Annotated[int, Field(ge=128, le=65_536)]], Field(min_length=1, max_length=8)] = (
        512,
        2048,
        8192,
        32_768,
    ),
    prompt: Annotated[int, Field(ge=64, le=60_000)] = 16_384,
    decodes: Annotated[int, Field(ge=0, le=64)] = 32,
    context: Annotated[int, Field(ge=16, le=4000)] = 1000,
    threshold: Annotated[int, Field(ge=0, le=65_536)] = 0,
    short_prompt: Annotated[int, Field(ge=16, le=2000)] = 128,
    model: Model = "llama-3.1-8b",
    gpu: Gpu = "h100",
) -> Interference:
    """A prompt of `prompt` tokens arrives while `decodes` requests generate; the same with each token budget.

    Real scheduler, prices of the cost model. A budget above the prompt's length stands for prefill in one piece.
    """
    runs = [
        _serve(budget, prompt, decodes, context, threshold, short_prompt, model, gpu) for budget in budgets
    ]
    quiet = _serve(max(budgets), 0, decodes, context, 0, 0, model, gpu)
    alone = _serve(65_536, prompt, 0, context, 0, 0, model, gpu)
    return Interference(
        list(budgets),
        [run[0] for run in runs],
        [run[1] for run in runs],
        quiet[1],
        alone[0],
        [run[2] for run in runs],
        [run[3] for run in runs],
    )


def _serve(
    budget: int,
    prompt: int,
    decodes: int,
    context: int,
    threshold: int,
    short_prompt: int,
    model: Model,
    gpu: Gpu,
) -> tuple[float, float, int, float]:
    """(TTFT of the long prompt, worst gap of the decodes after it came, its chunks, TTFT of the short) in ms."""
    from engine.config import CacheConfig
    from engine.sim.cost import CostModel
    from engine.sim.engine import SimEngine
    from engine.sim.run import scheduler_config
    from engine.sim.workload import SimRequest

    replica = deployment(model, gpu, budget=budget, max_num_seqs=66)
    steps: list[tuple[float, list[str], int]] = []

    def on_step(out: SchedulerOutput, load: StepLoad, seconds: float) -> None:
        steps.append((seconds, [row.request_id for row in out.scheduled], load.num_tokens))

    engine = SimEngine(
        scheduler_config(replica, long_prefill=threshold),
        CacheConfig(40_000, 16),
        CostModel(replica),
        on_step=on_step,
    )
    there = [engine.add(SimRequest(i, 0.0, context, 6000), 0.0) for i in range(decodes)]
    now = 0.0
    while any(record.num_tokens < 8 for record in there):  # type: ignore[union-attr]
        now += TICK
        engine.run_until(now)
    quiet = [seconds for seconds, rows, tokens in steps if tokens == len(rows)]
    del steps[:]
    newcomers = []
    if prompt:
        newcomers.append(engine.add(SimRequest(decodes, now, prompt, 1), now))
    if short_prompt:
        newcomers.append(engine.add(SimRequest(decodes + 1, now, short_prompt, 1), now))
    while any(record.num_tokens == 0 for record in newcomers):  # type: ignore[union-attr]
        now += TICK
        engine.run_until(now)
    ttft = [1000 * record.ttft for record in newcomers]  # type: ignore[union-attr]
    chunks = [seconds for seconds, rows, _ in steps if str(decodes) in rows]
    gap = max(chunks) if prompt else sum(quiet) / max(1, len(quiet))
    return ttft[0] if prompt else 0.0, 1000 * gap, len(chunks), ttft[-1] if short_prompt else 0.0


def chart(result: Interference) -> dict[str, Any]:
    """What a larger budget costs those that decode, and what it saves the long prompt."""
    values = [
        {"budget": str(budget), "ms": ms, "what": what}
        for what, column in (
            ("worst gap of decodes", result.worst_gap_ms),
            ("TTFT of the prompt", result.ttft_ms),
        )
        for budget, ms in zip(result.budgets, column, strict=True)
    ]
    return {
        "data": {"values": values},
        "mark": {"type": "line", "point": True},
        "encoding": {
            "x": {"field": "budget", "type": "ordinal", "sort": None, "title": "max_num_batched_tokens"},
            "y": {"field": "ms", "type": "quantitative"},
            "color": {"field": "what", "type": "nominal"},
        },
    }

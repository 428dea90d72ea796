from typing import Any

from engine.config import CacheConfig
from engine.core.sched_output import SchedulerOutput
from engine.sim.cost import CostModel, StepLoad
from engine.sim.engine import SimEngine
from engine.sim.run import scheduler_config
from engine.sim.workload import SimRequest
from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.charts import LINE, vega
from quizzes.experiments.scheduling._cluster import Gpu, Model, deployment

TICK = 0.05
"""Virtual seconds between two checks of the requests' progress."""


@experiment("E15")
def prefill_interference(
    ctx: Context,
    budgets: list[int] = arg([512, 2048, 8192, 32_768], 128, 65_536, count=(1, 8)),
    prompt: int = arg(16_384, 64, 60_000),
    decodes: int = arg(32, 0, 64),
    context: int = arg(1000, 16, 4000),
    threshold: int = arg(0, 0, 65_536),
    short_prompt: int = arg(128, 16, 2000),
    model: Model = "llama-3.1-8b",
    gpu: Gpu = "h100",
) -> Result:
    """Measure in milliseconds how a long prompt delays running decodes, for several token budgets.

    A prompt of `prompt` tokens arrives while `decodes` requests generate. Real scheduler, prices of the cost model. A
    budget above the prompt's length means prefill in one piece.

    Returns:
        By budget, in the order given. Virtual time.
        budgets [tokens]
        ttft_ms [ms]: TTFT of the long prompt.
        worst_gap_ms [ms]: Longest time between two tokens of a request that decodes.
        quiet_gap_ms [ms]: The same without the long prompt, on average.
        alone_ms [ms]: TTFT of the long prompt on an empty engine with the largest budget.
        chunks [steps]
        short_ttft_ms [ms]: TTFT of a short request that arrives just after the long one.
    """
    runs = [
        _serve(budget, prompt, decodes, context, threshold, short_prompt, model, gpu) for budget in budgets
    ]
    quiet = _serve(max(budgets), 0, decodes, context, 0, 0, model, gpu)
    alone = _serve(65_536, prompt, 0, context, 0, 0, model, gpu)
    return Result(
        budgets=list(budgets),
        ttft_ms=[run[0] for run in runs],
        worst_gap_ms=[run[1] for run in runs],
        quiet_gap_ms=quiet[1],
        alone_ms=alone[0],
        chunks=[run[2] for run in runs],
        short_ttft_ms=[run[3] for run in runs],
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
    arrivals = []
    if prompt:
        arrivals.append(engine.add(SimRequest(decodes, now, prompt, 1), now))
    if short_prompt:
        arrivals.append(engine.add(SimRequest(decodes + 1, now, short_prompt, 1), now))
    while any(record.num_tokens == 0 for record in arrivals):  # type: ignore[union-attr]
        now += TICK
        engine.run_until(now)
    ttft = [1000 * record.ttft for record in arrivals]  # type: ignore[union-attr]
    chunks = [seconds for seconds, rows, _ in steps if str(decodes) in rows]
    gap = max(chunks) if prompt else sum(quiet) / max(1, len(quiet))
    return ttft[0] if prompt else 0.0, 1000 * gap, len(chunks), ttft[-1] if short_prompt else 0.0


def chart(result: Result) -> dict[str, Any]:
    """Worst gap of the decodes and TTFT of the long prompt, by budget."""
    values = [
        {"budget": str(budget), "ms": ms, "what": what}
        for what, column in (
            ("worst gap of decodes", result.worst_gap_ms),
            ("TTFT of the prompt", result.ttft_ms),
        )
        for budget, ms in zip(result.budgets, column, strict=True)
    ]
    return vega(
        values,
        LINE,
        x=("budget:O", {"sort": None, "title": "max_num_batched_tokens"}),
        y="ms:Q",
        color="what:N",
    )

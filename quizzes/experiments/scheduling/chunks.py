"""Chunks of a prompt: token budget, price, interference with decodes."""

from typing import Any, NamedTuple

from engine.config import CacheConfig
from engine.core.sched_output import SchedulerOutput
from engine.sim.cost import CostModel, StepLoad, pairs_of
from engine.sim.engine import SimEngine
from engine.sim.memory import Deployment
from engine.sim.run import scheduler_config
from engine.sim.workload import SimRequest
from quizzes.experiments import Ask, BadArguments, Context, Result, arg, deploy, experiment
from quizzes.experiments.charts import LINE, stacked, vega
from quizzes.experiments.scheduling.load import Gpu, Model

WARM_STEPS = 2
"""The decoding requests read their prompts (one token each) before the long prompt comes."""

MOST_ROWS = 400_000
"""Maximum rows over all steps: a few seconds."""


@experiment("E15", "E14")
def token_budget(
    ctx: Context,
    decodes: int = arg(60, 0, 256),
    prompt: int = arg(4000, 1, 40_000),
    budget: int = arg(512, 1, 65_536),
    threshold: int = arg(0, 0, 65_536),
    chunked: bool = True,
) -> Result:
    """Cut a prompt into chunks by the step's token budget, beside requests that decode.

    Running requests come first, one token each; the prompt gets the rest of `budget`, at most `threshold`
    (long_prefill_token_threshold; 0: no limit). chunked=False: the whole prompt must fit into one step.

    Returns: Steps count from the first one with the prompt.
        chunks [tokens]: Chunks of the prompt, step by step.
        steps_to_first_token [steps]: Steps until the prompt's request has its first token, that one included.
        step_tokens [tokens]: All tokens of each of these steps.
        largest_step [tokens]
        missed_decodes [tokens]: Decode tokens that were due in these steps and not computed.
        decode_tokens [tokens]: Computed in these steps for the requests that were there before.
    """
    left = budget - decodes
    if left < 1:
        raise BadArguments(
            f"{decodes} decodes leave nothing of a budget of {budget}: raise budget above decodes"
        )
    if not chunked and prompt >= left:
        raise BadArguments(
            f"without chunks a prompt of {prompt} tokens needs a budget above {prompt + decodes}, not {budget}"
        )
    num_chunks = -(-prompt // min(left, threshold or left))
    if num_chunks * (decodes + 1) > MOST_ROWS:
        raise BadArguments(f"{num_chunks} steps of {decodes + 1} rows take too long here: raise budget")
    engine = ctx.core(
        max_num_seqs=decodes + 1,
        max_num_batched_tokens=budget,
        max_model_len=1_000_000 if chunked else budget,
        long_prefill_token_threshold=threshold,
        enable_chunked_prefill=chunked,
        traced=True,
    )
    for index in range(decodes):
        engine.add(Ask(f"d{index}", 1, 1 + WARM_STEPS + 2 * prompt if chunked else min(budget - 1, 64)))
    for _ in range(WARM_STEPS if decodes else 0):
        engine.step()
    before = engine.num_steps
    engine.add(Ask("long", prompt, 1))
    while engine.outcomes["long"].finished is None:
        engine.step()
    engine.close()
    steps = engine.steps[before:]
    computed = sum(len(step.rows) - ("long" in step.rows) for step in steps)
    return Result(
        chunks=[step.rows["long"][1] for step in steps if "long" in step.rows],
        steps_to_first_token=len(steps),
        step_tokens=[step.num_tokens for step in steps],
        largest_step=max(step.num_tokens for step in steps),
        missed_decodes=decodes * len(steps) - computed,
        decode_tokens=computed,
    )


@experiment("E15", "E30")
def chunk_cost(
    prompt: int = arg(8192, 16, 60_000),
    chunk: int = arg(512, 16, 60_000),
    model: Model = "llama-3.1-8b",
    gpu: Gpu = "h100",
) -> Result:
    """Price one prompt alone, whole or in chunks: passes over the weights, KV read again, time.

    The real scheduler makes the chunks; the cost model prices every step: linear layers by tokens, weights by passes,
    attention by the pairs and the KV that a chunk reads.

    Returns: Until the prompt's first token. Times are virtual (roofline of the datasheet).
        passes [passes]: Forward passes; each reads all weights once.
        whole_seconds, chunked_seconds [s]
        ratio [x]: Chunked over whole.
        pairs [pairs]: (query, key) pairs: the arithmetic of attention, the same however it is cut.
        whole_pairs [pairs]
        context_read [tokens]: Positions whose KV the chunks read, all chunks together.
        reread_factor [x]: KV reads over reading each position once.
        overhead_share [share]: Fixed costs of steps over the chunked time.
        last_chunk_over_first [x]: Time of the last full chunk over that of the first: later ones look back further.
    """
    cost = CostModel(deploy(model, gpu, holds=prompt))

    def serve(budget: int) -> list[tuple[StepLoad, float]]:
        """Return (load, seconds) of each step until the first token of a lone prompt."""
        steps: list[tuple[StepLoad, float]] = []
        replica = deploy(model, gpu, max_num_batched_tokens=budget, max_num_seqs=1, max_model_len=65_536)
        engine = SimEngine(
            scheduler_config(replica),
            CacheConfig(65_536 // 16 + 2, 16),
            cost,
            on_step=lambda _, load, seconds: steps.append((load, seconds)),
        )
        engine.run([SimRequest(0, 0.0, prompt, 1)])
        return steps

    whole, cut = serve(65_536), serve(chunk)
    full = [seconds for load, seconds in cut if load.num_tokens == min(chunk, prompt)]
    once, total = (sum(seconds for _, seconds in steps) for steps in (whole, cut))
    read = sum(load.prefill_context or load.decode_context for load, _ in cut)
    return Result(
        passes=len(cut),
        whole_seconds=once,
        chunked_seconds=total,
        ratio=total / once,
        pairs=sum(load.prefill_pairs or load.decode_context for load, _ in cut),
        whole_pairs=sum(load.prefill_pairs for load, _ in whole),
        context_read=read,
        reread_factor=read / prompt,
        overhead_share=sum(cost.parts(load)["overhead"] for load, _ in cut) / total,
        last_chunk_over_first=full[-1] / full[0],
    )


@experiment("E15", "E24")
def mixed_step(
    decodes: int = arg(32, 1, 512),
    context: int = arg(1000, 1, 32_000),
    chunk: int = arg(512, 2, 32_000),
    model: Model = "llama-3.1-8b",
    gpu: Gpu = "h100",
) -> Result:
    """Compare decodes and a prefill chunk in one step with the same work in two steps.

    Sharing a step reads the weights once. Bound: intensity against the ridge point, at the rates that kernels reach.

    Returns: Roofline prices of single steps.
        decode_ms, chunk_ms, mixed_ms [ms]
        saving [share]: Time saved over the time of two steps.
        decode_intensity [FLOP/byte]: Arithmetic intensity of the linear layers.
        chunk_intensity, ridge [FLOP/byte]; decode_is_memory_bound, chunk_is_compute_bound
    """
    cost = CostModel(deploy(model, gpu, holds=decodes * context + chunk))
    pairs = pairs_of(0, chunk, None)
    loads = {
        "decode": StepLoad(decodes, decodes, decodes, decodes * context),
        "chunk": StepLoad(1, chunk, 0, 0, pairs, chunk),
        "mixed": StepLoad(decodes + 1, decodes + chunk, decodes, decodes * context, pairs, chunk),
    }
    seconds = {name: cost.seconds(load) for name, load in loads.items()}
    intensity = {name: cost.intensity(load) for name, load in loads.items()}
    ridge = cost.rates.flops / cost.rates.bytes_per_s
    return Result(
        **{f"{name}_ms": 1000 * value for name, value in seconds.items()},
        saving=1 - seconds["mixed"] / (seconds["decode"] + seconds["chunk"]),
        decode_intensity=intensity["decode"],
        chunk_intensity=intensity["chunk"],
        ridge=ridge,
        decode_is_memory_bound=intensity["decode"] < ridge,
        chunk_is_compute_bound=intensity["chunk"] > ridge,
    )


TICK = 0.05
"""Virtual seconds between two checks of the requests' progress."""


@experiment("E15")
def prefill_interference(
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

    Returns: By budget, in the order given. Virtual time.
        budgets [tokens]
        ttft_ms [ms]: TTFT of the long prompt.
        worst_gap_ms [ms]: Longest time between two tokens of a request that decodes.
        quiet_gap_ms [ms]: The same without the long prompt, on average.
        alone_ms [ms]: TTFT of the long prompt on an empty engine with the largest budget.
        chunks [steps]
        short_ttft_ms [ms]: TTFT of a short request that arrives just after the long one.
    """

    def serve(budget: int, prompt: int, decodes: int, threshold: int, short: int) -> _Served:
        limits = {"max_num_batched_tokens": budget, "max_num_seqs": 66, "max_model_len": 65_536}
        replica = deploy(model, gpu, holds=decodes * context + prompt + short, **limits)
        return _serve(replica, prompt, decodes, context, threshold, short)

    runs = [serve(budget, prompt, decodes, threshold, short_prompt) for budget in budgets]
    return Result(
        budgets=list(budgets),
        ttft_ms=[run.ttft_ms for run in runs],
        worst_gap_ms=[run.gap_ms for run in runs],
        quiet_gap_ms=serve(max(budgets), 0, decodes, 0, 0).gap_ms,
        alone_ms=serve(65_536, prompt, 0, 0, 0).ttft_ms,
        chunks=[run.chunks for run in runs],
        short_ttft_ms=[run.short_ttft_ms for run in runs],
    )


class _Served(NamedTuple):
    ttft_ms: float
    """TTFT of the long prompt."""
    gap_ms: float
    """Worst gap of the decodes after the long prompt came; without one, their mean gap."""
    chunks: int
    short_ttft_ms: float


def _serve(
    replica: Deployment, prompt: int, decodes: int, context: int, threshold: int, short_prompt: int
) -> _Served:
    steps: list[tuple[float, list[str], int]] = []

    def on_step(out: SchedulerOutput, load: StepLoad, seconds: float) -> None:
        steps.append((seconds, [row.request_id for row in out.scheduled], load.num_tokens))

    config = scheduler_config(replica, long_prefill=threshold)
    engine: Any = SimEngine(config, CacheConfig(40_000, 16), CostModel(replica), on_step=on_step)
    there = [engine.add(SimRequest(i, 0.0, context, 6000), 0.0) for i in range(decodes)]
    now = 0.0
    while any(record.num_tokens < 8 for record in there):
        now += TICK
        engine.run_until(now)
    quiet = [seconds for seconds, rows, tokens in steps if tokens == len(rows)]
    steps.clear()
    lengths = {decodes: prompt, decodes + 1: short_prompt}
    arrivals = [engine.add(SimRequest(i, now, n, 1), now) for i, n in lengths.items() if n]
    while any(record.num_tokens == 0 for record in arrivals):
        now += TICK
        engine.run_until(now)
    ttft = [1000 * record.ttft for record in arrivals]
    chunks = [seconds for seconds, rows, _ in steps if str(decodes) in rows]
    gap = max(chunks) if prompt else sum(quiet) / max(1, len(quiet))
    return _Served(ttft[0] if prompt else 0.0, 1000 * gap, len(chunks), ttft[-1] if short_prompt else 0.0)


def prefill_interference_chart(result: Result) -> dict[str, Any]:
    """Worst gap of the decodes and TTFT of the long prompt, by budget."""
    budgets = list(map(str, result.budgets))
    series = {"worst gap of decodes": result.worst_gap_ms, "TTFT of the prompt": result.ttft_ms}
    return vega(
        stacked("budget", budgets, "ms", **series),
        LINE,
        x=("budget:O", {"sort": None, "title": "max_num_batched_tokens"}),
        y="ms:Q",
        color="what:N",
    )

from engine.sim.sizing import latency_of, slo_budget
from quizzes.experiments import Context, Result, arg, experiment


@experiment("E54")
def slo_tokens(
    ctx: Context,
    ttft_ms: float = arg(180.0, 0, 3_600_000),
    tpot_ms: float = arg(15.0, above=0, high=100_000),
    limit_ms: float = arg(2000.0, 0, 3_600_000),
    hops_ms: list[float] = arg([], 0, 3_600_000, count=(0, 32)),
    answer: int = arg(300, 1, 1_000_000),
) -> Result:
    """Compute how many output tokens fit into an end-to-end latency limit.

    hops_ms: latency of the components in front of the engine.

    Returns:
        latency of n tokens = hops + TTFT + (n - 1) x TPOT.
        hops_ms [ms]
        tokens [tokens]: Output tokens that fit into the limit; 0: not even the first.
        latency_ms [ms]: Time until the last of `answer` tokens.
        meets: latency_ms is within the limit.
        tpot_needed_ms [ms]: The TPOT at which `answer` tokens would just fit; negative: none would.
    """
    hops = sum(hops_ms)
    seconds = {"ttft": ttft_ms / 1000, "tpot": tpot_ms / 1000, "hops": hops / 1000}
    budget = slo_budget(limit=limit_ms / 1000, **seconds)
    latency = 1000 * latency_of(answer, **seconds)
    left = limit_ms - hops - ttft_ms
    return Result(
        hops_ms=hops,
        tokens=budget.tokens,
        latency_ms=latency,
        meets=latency <= limit_ms + 1e-6,
        tpot_needed_ms=left / max(1, answer - 1),
    )

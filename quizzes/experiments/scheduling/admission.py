from typing import Literal

from engine.core.errors import RequestRejected
from quizzes.experiments import Ask, BadArguments, Context, Result, arg, experiment
from quizzes.experiments.scheduling import _reserve

Rule = Literal["prompt", "watermark", "full"]


@experiment("E19")
def admission(
    ctx: Context,
    rule: Rule = "prompt",
    blocks: int = arg(40, 2, 2000),
    requests: int = arg(12, 1, 100),
    prompt: int = arg(60, 1, 2000),
    output: int = arg(80, 1, 500),
    max_tokens: int = arg(0, 0, 2000),
    max_num_seqs: int = arg(256, 1, 256),
    block_size: int = arg(16, 1, 64),
    watermark: float = arg(0.1, 0, below=1),
) -> Result:
    """Admit requests by one of three rules and count preemptions.

    prompt: blocks for all known tokens, nothing for the output (this engine; vLLM with its default
    scheduler_reserve_full_isl). watermark: the same, while a share of all blocks stays free. full: room for max_tokens
    of every running request. A request generates `output` tokens and asks for at most max_tokens (0: the same number).

    Returns:
        Equal requests all wait at step 0.
        admitted_first [requests]: Requests admitted in the first step that admits any.
        blocks_first [blocks]: Taken after that step.
        peak_running [requests]
        preemptions
        recomputed_tokens [tokens]: Computed more than once.
        steps [steps]: Steps until all requests have finished.
        mean_running [requests]: Requests that computed, per step.
        first_reason: Reason why the first refused request could not start; empty if none was refused.
        first_need [blocks]: Amount that the reason reports as missing or needed.
        refused [requests]: Rejected on arrival: with max_tokens they would not fit alone into an empty cache.
    """
    limit = max_tokens or output
    if limit < output:
        raise BadArguments(f"max_tokens {limit} is less than output {output}, so the output would be cut")

    makers = {"watermark": _reserve.watermark(watermark), "full": _reserve.ReservingScheduler}
    own = {"make_scheduler": makers[rule]} if rule in makers else {}
    engine = ctx.core(
        num_blocks=blocks,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=100_000,
        traced=True,
        **own,
    )
    refused = 0
    for index in range(requests):
        try:
            engine.add(Ask(f"r{index}", prompt, output, max_tokens=limit))
        except RequestRejected:
            refused += 1
    if refused == requests:
        counts = (
            "admitted_first",
            "blocks_first",
            "peak_running",
            "preemptions",
            "recomputed_tokens",
            "steps",
        )
        none = dict.fromkeys((*counts, "first_need"), 0)
        return Result(refused=refused, first_reason="", mean_running=0.0, **none)
    engine.run()
    first = next(step for step in engine.steps if step.stats.num_admitted)
    reasons = [entry for entry in first.plan.not_scheduled if entry.request_id]
    computed = sum(outcome.computed_tokens for outcome in engine.outcomes.values())
    return Result(
        admitted_first=len(first.rows),
        blocks_first=blocks - first.free_blocks,
        peak_running=max(len(step.rows) for step in engine.steps),
        preemptions=engine.num_preemptions,
        recomputed_tokens=computed - requests * (prompt + output - 1),
        steps=engine.num_steps,
        mean_running=sum(len(step.rows) for step in engine.steps) / engine.num_steps,
        first_reason=str(reasons[0].reason) if reasons else "",
        first_need=reasons[0].details.get("need", 0) if reasons else 0,
        refused=refused,
    )

"""Too little memory: waiting, preemption, refusal, and what bounds a step."""

from typing import Literal

from common.text import GIB
from engine.core.errors import RequestRejected
from engine.sim.memory import plan_memory
from quizzes.experiments import Ask, Context, Result, arg, deploy, experiment


@experiment("E53")
def no_room(
    ctx: Context,
    situation: Literal["newcomer", "growth", "prompt_too_long", "never_fits"] = "newcomer",
    prompt: int = arg(60, 1, 2000),
    output: int = arg(20, 2, 500),
    num_blocks: int = arg(12, 2, 500),
    block_size: int = arg(16, 1, 256),
    max_model_len: int = arg(1000, 2, 100_000),
) -> Result:
    """Run out of KV memory in several ways and see whether the engine waits, preempts or refuses.

    Two requests have `prompt` and `output` tokens; a last one differs. newcomer: it has the same lengths and arrives
    when the pool is nearly full. growth: all three start at once and grow. prompt_too_long: its prompt is
    max_model_len. never_fits: it alone would need one block more than the pool has.

    Returns:
        outcome: waits, preempts, rejected, or runs (nothing ran out).
        code: Code of a rejection: prompt_too_long or exceeds_cache; empty otherwise.
        reason: Why the last request computed nothing, the first time it did not; empty if it always did.
        finished, rejected [requests]; num_preemptions; peak_blocks [blocks]
        waited_steps [steps]: Steps from the last request's arrival until it first computed; 0 if it was refused.
        blocks_needed [blocks]: Blocks that the last request alone may need.
    """
    engine = ctx.core(
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=max_model_len,
        enable_prefix_caching=False,
        traced=True,
    )
    lengths = {
        "prompt_too_long": max_model_len,
        "never_fits": max(1, num_blocks * block_size + 2 - output),
    }
    length = lengths.get(situation, prompt)
    engine.add(Ask("r0", prompt, output))
    engine.add(Ask("r1", prompt, output))
    if situation != "growth":
        engine.step()
    code = ""
    try:
        engine.add(Ask("last", length, output))
    except RequestRejected as refusal:
        code = refusal.code
    engine.run()
    views = [view for step in engine.steps if not code and (view := step.why_not("last"))]
    outcome = engine.outcomes.get("last")
    waited = outcome.admitted - outcome.arrival if outcome is not None else 0
    preempted = engine.num_preemptions
    return Result(
        outcome="rejected" if code else "preempts" if preempted else "waits" if waited else "runs",
        code=code,
        reason=str(views[0].reason) if views else "",
        finished=sum(o.finished is not None for o in engine.outcomes.values()),
        rejected=int(bool(code)),
        num_preemptions=preempted,
        peak_blocks=engine.peak_blocks,
        waited_steps=waited,
        blocks_needed=-(-(length + output - 1) // block_size),
    )


@experiment("E53")
def tail_context(
    ctx: Context,
    utilization: float = arg(0.95, above=0.3, high=1),
    model: str = "llama-3.1-8b",
    gpu: str = "h100",
    chats: int = arg(20, 0, 64),
    tail_prompt: int = arg(30_000, 1, 120_000),
    budget: int = arg(2048, 64, 16_384),
    num_blocks: int = arg(2500, 10, 20_000),
) -> Result:
    """Check whether one long request can make a step exceed the peak measured at start: tokens, rows, blocks.

    `chats` ordinary requests and one with a very long prompt share a pool of `num_blocks` blocks of 16 tokens.

    Returns: Activations grow with the tokens of a step, KV with the blocks in use; both limits are set at start.
        peak_step_tokens, budget [tokens]; peak_blocks, num_blocks [blocks]; num_preemptions
        finished, rejected [requests]
        over_bounds: A step held more tokens than its budget, or the pool gave more blocks than it has.
        kv_gib [GiB]: KV pool on a real card at this gpu_memory_utilization.
        outside_gib [GiB]: Memory of the card left to other processes, fragmentation and unprofiled allocations.
    """
    card = {"gpu_memory_utilization": utilization, "max_num_batched_tokens": budget}
    plan = plan_memory(deploy(model, gpu, **card))
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
    return Result(
        peak_step_tokens=peak_tokens,
        budget=budget,
        peak_blocks=engine.peak_blocks,
        num_blocks=num_blocks,
        num_preemptions=engine.num_preemptions,
        finished=sum(o.finished is not None for o in engine.outcomes.values()),
        rejected=rejected,
        over_bounds=peak_tokens > budget or engine.peak_blocks > num_blocks,
        kv_gib=plan.kv_budget / GIB,
        outside_gib=(plan.total - plan.usable) / GIB,
    )

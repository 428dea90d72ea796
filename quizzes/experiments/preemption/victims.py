"""Victims of preemption, and what it costs them."""

from typing import Any, Literal

from engine.config import TierConfig
from quizzes.experiments import Ask, BadArguments, Context, CoreEngine, Result, arg, experiment
from quizzes.experiments.core_engine import Outcome


@experiment("E17")
def victims(
    ctx: Context,
    prompts: list[int] = arg([40, 40, 40], 1, 4000, count=(1, 32)),
    outputs: list[int] = arg([60, 60, 60], 1, 4000, count=(1, 32)),
    num_blocks: int = arg(12, 2, 4000),
    block_size: int = arg(16, 1, 256),
    priorities: list[int] = arg([], 0, 10_000, count=(0, 32)),
    arrivals: list[int] = arg([], 0, 10_000, count=(0, 32)),
    policy: Literal["fcfs", "priority"] = "fcfs",
    prefix_caching: bool = False,
    max_num_batched_tokens: int = arg(8192, 1, 8192),
) -> Result:
    """Fill the pool and see which requests are preempted, when, and at what cost (vLLM v1/core/sched/scheduler.py).

    `priorities` (lower is more important) and `arrivals` (steps) are 0 where left out. Without prefix caching a victim
    computes everything again; with it, a victim may hit its blocks that have not been reused.

    Returns: Requests are numbered from 0 in the order of `prompts`. Steps count from 0.
        victims [request]: Preempted requests in order; one may occur several times.
        steps [step]
        dropped_tokens [tokens]: KV that each victim lost.
        output_so_far [tokens]: Tokens that each victim had generated; they are kept and computed again like a prompt.
        reasons, num_preemptions
        recomputed_tokens [tokens]: Positions that went through the model a second time, over all requests.
        first_token, finished [step]
        longest_gap [steps]: By request: maximum steps between two of its tokens; 1: no delay.
        total_steps [steps]
        first_victim [request]: The first victim; -1 without preemption.
        first_step [step]
    """
    if len(outputs) != len(prompts):
        raise BadArguments(f"{len(prompts)} prompts need as many outputs, not {len(outputs)}")
    engine = ctx.core(
        num_blocks=num_blocks,
        block_size=block_size,
        policy=policy,
        enable_prefix_caching=prefix_caching,
        max_num_batched_tokens=max_num_batched_tokens,
        traced=True,
    )
    columns = [prompts, outputs, *([*given, *[0] * len(prompts)] for given in (arrivals, priorities))]
    rows = list(zip(*columns, strict=False))
    engine.run(Ask(f"r{i}", p, o, arrival=at, priority=rank) for i, (p, o, at, rank) in enumerate(rows))
    outcomes = [engine.outcomes[f"r{i}"] for i in range(len(rows))]
    lost = [(step, int(name[1:])) for step, name in engine.preempted]
    views = [engine.steps[step].why_not(name) for step, name in engine.preempted]
    needed = sum(
        p + o - 1 - outcome.cached_tokens for (p, o, *_), outcome in zip(rows, outcomes, strict=True)
    )
    return Result(
        victims=[who for _, who in lost],
        steps=[step for step, _ in lost],
        dropped_tokens=[computed_before(engine, name, step) for step, name in engine.preempted],
        output_so_far=[sum(s < step for s in outcomes[who].token_steps) for step, who in lost],
        reasons=[str(view.reason) for view in views if view is not None],
        num_preemptions=len(lost),
        recomputed_tokens=engine.computed_tokens - needed,
        first_token=[outcome.first_token for outcome in outcomes],
        finished=[outcome.finished for outcome in outcomes],
        longest_gap=[outcome.longest_gap for outcome in outcomes],
        total_steps=engine.num_steps,
        first_victim=lost[0][1] if lost else -1,
        first_step=lost[0][0] if lost else -1,
    )


def computed_before(engine: CoreEngine, name: str, step: int) -> int:
    """Return the tokens of a request whose KV existed when a step began."""
    return next((sum(view.rows[name]) for view in reversed(engine.steps[:step]) if name in view.rows), 0)


@experiment("E17")
def which_metric(
    ctx: Context,
    prompt: int = arg(64, 1, 2000),
    output: int = arg(64, 2, 1000),
    last_prompt: int = arg(64, 1, 2000),
    last_arrival: int = arg(4, 0, 1000),
    num_blocks: int = arg(13, 2, 1000),
    budget: int = arg(512, 3, 8192),
    block_size: int = arg(16, 1, 256),
) -> Result:
    """Check whether a preemption shows in TTFT or in the gap between tokens.

    Returns: Two requests run from the start, a third comes later. Delays: steps in `num_blocks` minus in ample memory.
        victim [request]: The first preempted request; -1 if there is none.
        victim_had_tokens [tokens]: Output that it had by then.
        victim_ttft_delay [steps]
        victim_longest_gap, victim_gap_undisturbed [steps]: Longest gap of its tokens, with and without pressure.
        others_ttft_delay [steps]: Additional steps until the first token of each other request, in order.
        num_preemptions
    """
    asks = [
        Ask("r0", prompt, output),
        Ask("r1", prompt, output),
        Ask("r2", last_prompt, output, arrival=last_arrival),
    ]
    settings: dict[str, Any] = {"block_size": block_size, "max_num_batched_tokens": budget}
    tight, ample = (
        ctx.core(num_blocks=size, traced=True, enable_prefix_caching=False, **settings).run(asks)
        for size in (num_blocks, 10_000)
    )
    late = {
        name: o.token_steps[0] - ample.outcomes[name].token_steps[0] for name, o in tight.outcomes.items()
    }
    step, victim = next(iter(tight.preempted), (0, ""))
    here, undisturbed = (engine.outcomes.get(victim, Outcome(0)) for engine in (tight, ample))
    return Result(
        victim=int(victim[1:]) if victim else -1,
        victim_had_tokens=sum(s < step for s in here.token_steps),
        victim_ttft_delay=late.get(victim, 0),
        victim_longest_gap=here.longest_gap,
        victim_gap_undisturbed=undisturbed.longest_gap,
        others_ttft_delay=[late[ask.request_id] for ask in asks if ask.request_id != victim],
        num_preemptions=tight.num_preemptions,
    )


@experiment("E17")
def concurrency_sweep(
    ctx: Context,
    num_requests: int = arg(24, 1, 64),
    prompt: int = arg(32, 1, 500),
    output: int = arg(96, 2, 500),
    num_blocks: int = arg(40, 2, 2000),
    limits: list[int] = arg([2, 5, 8, 24], 1, 256, count=(1, 8)),
    block_size: int = arg(16, 1, 256),
) -> Result:
    """Sweep max_num_seqs beyond what memory can hold: preemptions, recomputed tokens, steps.

    Returns: By entry of `limits`. All requests are present at the start; prefix caching is off.
        preemptions [preemptions]; recomputed_tokens [tokens]; total_steps [steps]
        best_limit: The max_num_seqs that computes the fewest positions, the largest among equals.
        safe_limit: Requests whose blocks all fit at their final length.
    """
    asks = [Ask(f"r{i}", prompt, output) for i in range(num_requests)]
    needed = num_requests * (prompt + output - 1)
    engines = [
        ctx.core(
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=limit,
            enable_prefix_caching=False,
            traced=limit == max(limits),
        ).run(asks)
        for limit in limits
    ]
    recomputed = [engine.computed_tokens - needed for engine in engines]
    return Result(
        preemptions=[engine.num_preemptions for engine in engines],
        recomputed_tokens=recomputed,
        total_steps=[engine.num_steps for engine in engines],
        best_limit=min(zip(recomputed, limits, strict=True), key=lambda pair: (pair[0], -pair[1]))[1],
        safe_limit=num_blocks // -(-(prompt + output - 1) // block_size),
    )


@experiment("E18")
def swap_counts(
    ctx: Context,
    prompt: int = arg(50, 1, 2000),
    victim_prompt: int = arg(0, 0, 2000),
    output: int = arg(60, 2, 1000),
    num_blocks: int = arg(10, 2, 1000),
    host_blocks: int = arg(64, 1, 10_000),
    block_size: int = arg(16, 1, 256),
    budget: int = arg(8192, 2, 8192),
) -> Result:
    """Count what a preemption moves and what it computes again, with `preemption_mode` recompute and swap.

    Two requests outgrow the pool. Prefix caching is off, so that no freed block is hit by chance. victim_prompt:
    tokens of the second prompt; 0: as many as the first. Equal requests reach the end of a block together, so the
    victim has no partial block to lose.

    Returns: The same two requests twice: with recompute and with swap.
        had_tokens [tokens]: KV of the first victim when it lost its blocks.
        swapped_out_blocks, swapped_in_blocks [blocks]
        recomputed_with_swap [tokens]: Positions computed a second time: those of blocks that were not full, or found
            no room on the host.
        recomputed_without [tokens]; steps_with_swap, steps_without [steps]; num_preemptions, same_victims
    """
    second = victim_prompt or prompt
    asks = [Ask("r0", prompt, output), Ask("r1", second, output)]
    sizes = {"num_blocks": num_blocks, "block_size": block_size, "max_num_batched_tokens": budget}
    settings: dict[str, Any] = {"enable_prefix_caching": False, **sizes}
    swap = ctx.core(tiers=TierConfig(host_blocks, swap=True), traced=True, **settings).run(asks)
    plain = ctx.core(**settings).run(asks)
    needed = prompt + second + 2 * (output - 1)
    lost = [computed_before(swap, name, step) for step, name in swap.preempted]
    return Result(
        had_tokens=lost[0] if lost else 0,
        swapped_out_blocks=sum(step.stats.num_blocks_swapped_out for step in swap.steps),
        swapped_in_blocks=sum(step.stats.num_blocks_copied_in for step in swap.steps),
        recomputed_with_swap=swap.computed_tokens - needed,
        recomputed_without=plain.computed_tokens - needed,
        steps_with_swap=swap.num_steps,
        steps_without=plain.num_steps,
        num_preemptions=swap.num_preemptions,
        same_victims=[step.preempted for step in swap.steps if step.preempted]
        == [step.preempted for step in plain.steps if step.preempted],
    )

from typing import Any

from engine.config import TierConfig
from quizzes.experiments import Ask, Context, Result, arg, experiment
from quizzes.experiments.preemption.victims import computed_before


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

    Returns:
        The same two requests twice: with recompute and with swap.
        had_tokens [tokens]: KV of the first victim when it lost its blocks.
        swapped_out_blocks, swapped_in_blocks [blocks]
        recomputed_with_swap [tokens]: Positions computed a second time: those of blocks that were not full, or found
            no room on the host.
        recomputed_without [tokens]
        steps_with_swap, steps_without [steps]
        num_preemptions, same_victims
    """
    second = victim_prompt or prompt
    asks = [Ask("r0", prompt, output), Ask("r1", second, output)]
    settings: dict[str, Any] = {
        "num_blocks": num_blocks,
        "block_size": block_size,
        "enable_prefix_caching": False,
        "max_num_batched_tokens": budget,
    }
    swap = ctx.core(tiers=TierConfig(host_blocks, swap=True), traced=True, **settings).run(asks)
    plain = ctx.core(**settings).run(asks)
    needed = prompt + second + 2 * (output - 1)
    lost = [(step.index, name) for step in swap.steps for name in step.preempted]
    return Result(
        had_tokens=computed_before(swap, lost[0][1], lost[0][0]) if lost else 0,
        swapped_out_blocks=sum(step.stats.num_blocks_swapped_out for step in swap.steps),
        swapped_in_blocks=sum(step.stats.num_blocks_copied_in for step in swap.steps),
        recomputed_with_swap=sum(o.computed_tokens for o in swap.outcomes.values()) - needed,
        recomputed_without=sum(o.computed_tokens for o in plain.outcomes.values()) - needed,
        steps_with_swap=swap.num_steps,
        steps_without=plain.num_steps,
        num_preemptions=swap.num_preemptions,
        same_victims=[step.preempted for step in swap.steps if step.preempted]
        == [step.preempted for step in plain.steps if step.preempted],
    )

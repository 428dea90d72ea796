from itertools import pairwise
from typing import Literal

from quizzes.experiments import Ask, Context, CoreEngine, Result, arg, experiment


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

    Returns:
        Requests are numbered from 0 in the order of `prompts`. Steps count from 0.
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
    engine = ctx.core(
        num_blocks=num_blocks,
        block_size=block_size,
        policy=policy,
        enable_prefix_caching=prefix_caching,
        max_num_batched_tokens=max_num_batched_tokens,
        traced=True,
    )
    count = len(prompts)
    engine.run(
        Ask(f"r{i}", prompts[i], outputs[i], arrival=_at(arrivals, i), priority=_at(priorities, i))
        for i in range(count)
    )
    outcomes = [engine.outcomes[f"r{i}"] for i in range(count)]
    lost = [(step.index, int(name[1:])) for step in engine.steps for name in step.preempted]
    needed = sum(prompts[i] + outputs[i] - 1 - outcomes[i].cached_tokens for i in range(count))
    return Result(
        victims=[who for _, who in lost],
        steps=[step for step, _ in lost],
        dropped_tokens=[computed_before(engine, f"r{who}", step) for step, who in lost],
        output_so_far=[sum(s < step for s in outcomes[who].token_steps) for step, who in lost],
        reasons=[_reason(engine, f"r{who}", step) for step, who in lost],
        num_preemptions=len(lost),
        recomputed_tokens=sum(outcome.computed_tokens for outcome in outcomes) - needed,
        first_token=[outcome.first_token for outcome in outcomes],
        finished=[outcome.finished for outcome in outcomes],
        longest_gap=[
            max([later - earlier for earlier, later in pairwise(outcome.token_steps)], default=0)
            for outcome in outcomes
        ],
        total_steps=engine.num_steps,
        first_victim=lost[0][1] if lost else -1,
        first_step=lost[0][0] if lost else -1,
    )


def computed_before(engine: CoreEngine, name: str, step: int) -> int:
    """Return the tokens of a request whose KV existed when a step began."""
    for view in reversed(engine.steps[:step]):
        if name in view.rows:
            start, num_tokens = view.rows[name]
            return start + num_tokens
    return 0


def _at(values: list[int], index: int) -> int:
    return values[index] if index < len(values) else 0


def _reason(engine: CoreEngine, name: str, step: int) -> str:
    found = engine.steps[step].why_not(name)
    assert found is not None
    return str(found.reason)

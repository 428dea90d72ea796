from itertools import pairwise
from typing import Any

from quizzes.experiments import Ask, Context, CoreEngine, Result, arg, experiment


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

    Three requests run in `num_blocks` and in ample memory; the times of their tokens are compared.

    Returns:
        Two requests run from the start, a third arrives later. Delays are steps under pressure minus steps without.
        victim [request]: The first preempted request; -1 if there is none.
        victim_had_tokens [tokens]: Output that it had by then.
        victim_ttft_delay [steps]
        victim_longest_gap, victim_gap_undisturbed [steps]: Longest time between two of its tokens, under pressure and
            without.
        others_ttft_delay [steps]: Additional steps until the first token of each other request, in order.
        num_preemptions
    """
    asks = [
        Ask("r0", prompt, output),
        Ask("r1", prompt, output),
        Ask("r2", last_prompt, output, arrival=last_arrival),
    ]
    settings: dict[str, Any] = {
        "block_size": block_size,
        "max_num_batched_tokens": budget,
        "enable_prefix_caching": False,
    }
    tight = ctx.core(num_blocks=num_blocks, traced=True, **settings).run(asks)
    ample = ctx.core(num_blocks=10_000, **settings).run(asks)
    lost = [(step.index, name) for step in tight.steps for name in step.preempted]
    late = {name: _first(tight, name) - _first(ample, name) for name in ("r0", "r1", "r2")}
    if not lost:
        return Result(
            victim=-1,
            victim_had_tokens=0,
            victim_ttft_delay=0,
            victim_longest_gap=0,
            victim_gap_undisturbed=0,
            others_ttft_delay=list(late.values()),
            num_preemptions=0,
        )
    step, victim = lost[0]
    return Result(
        victim=int(victim[1:]),
        victim_had_tokens=sum(s < step for s in tight.outcomes[victim].token_steps),
        victim_ttft_delay=late[victim],
        victim_longest_gap=_longest_gap(tight, victim),
        victim_gap_undisturbed=_longest_gap(ample, victim),
        others_ttft_delay=[delay for name, delay in late.items() if name != victim],
        num_preemptions=len(lost),
    )


def _first(engine: CoreEngine, name: str) -> int:
    return engine.outcomes[name].token_steps[0]


def _longest_gap(engine: CoreEngine, name: str) -> int:
    steps = engine.outcomes[name].token_steps
    return max([later - earlier for earlier, later in pairwise(steps)], default=0)

from engine.core.sched_output import Reason
from quizzes.experiments import Ask, BadArguments, Context, Result, arg, experiment
from quizzes.experiments.core_engine import CoreEngine, StepView
from quizzes.experiments.scheduling._policies import BypassScheduler


@experiment("E20", "E19")
def head_of_line(
    ctx: Context,
    blocks: int = arg(20, 4, 400),
    running_blocks: int = arg(12, 1, 400),
    running_steps: int = arg(15, 1, 100),
    large_blocks: int = arg(12, 1, 400),
    small: int = arg(4, 1, 60),
    small_every: int = arg(2, 1, 20),
    small_steps: int = arg(5, 1, 14),
) -> Result:
    """Put a large request at the head of the queue, with small ones behind it that would fit.

    One request holds `running_blocks` of the `blocks`; a large prompt arrives, then small ones of one block each, one
    every `small_every` steps from step 2 on. Block size 16; prompts leave room for their outputs in their last blocks.

    Returns:
        Under fcfs no request overtakes another, as in vLLM and here; under bypass any request that fits is admitted.
        fcfs_large_admitted, bypass_large_admitted [step]
        fcfs_small_wait, bypass_small_wait [steps]: Mean steps between arrival and admission of the small requests.
        blocked_steps [steps]: fcfs: steps in which blocks for a small request were free and it was held back by the
            head.
        head_reason: fcfs: what the scheduler says about the large request while it waits.
        small_reason: Reason that fcfs reports for the small requests.
        fcfs_steps, bypass_steps [steps]
    """
    if max(running_blocks, large_blocks) > blocks:
        raise BadArguments("running_blocks and large_blocks must each fit into blocks, or it could never run")
    fits = 16
    asks = [
        Ask("running", max(1, running_blocks * fits - running_steps), running_steps),
        Ask("large", max(1, large_blocks * fits - 2), 2, arrival=1),
        *(
            Ask(f"small{i}", fits - small_steps, small_steps, arrival=2 + i * small_every)
            for i in range(small)
        ),
    ]

    fcfs = ctx.core(num_blocks=blocks, traced=True).run(asks)
    bypass = ctx.core(num_blocks=blocks, make_scheduler=BypassScheduler).run(asks)
    held = [step for step in fcfs.steps if step.free_blocks >= 1 and _is_held_back(step, small)]
    reasons = [step.why_not("large") for step in fcfs.steps]
    return Result(
        fcfs_large_admitted=fcfs.outcomes["large"].admitted,
        bypass_large_admitted=bypass.outcomes["large"].admitted,
        fcfs_small_wait=_mean_wait(fcfs, small),
        bypass_small_wait=_mean_wait(bypass, small),
        blocked_steps=len(held),
        head_reason=next((str(reason.reason) for reason in reasons if reason), "never waited"),
        small_reason=str(Reason.BEHIND_IN_QUEUE) if held else "never waited",
        fcfs_steps=fcfs.num_steps,
        bypass_steps=bypass.num_steps,
    )


def _is_held_back(step: StepView, small: int) -> bool:
    """Some small request waits in this step because of the one ahead."""
    reasons = [step.why_not(f"small{i}") for i in range(small)]
    waits = [reason for reason in reasons if reason is not None]
    return step.plan.scheduled != [] and any(r.reason is Reason.BEHIND_IN_QUEUE for r in waits)


def _mean_wait(engine: CoreEngine, small: int) -> float:
    outcomes = [engine.outcomes[f"small{i}"] for i in range(small)]
    return sum(int(outcome.admitted) - outcome.arrival for outcome in outcomes) / small

from engine.config import CacheConfig, SchedulerConfig
from engine.core.request import Request
from engine.core.sched_output import ModelRunnerOutput
from engine.core.scheduler import Scheduler
from engine.sampling_params import SamplingParams
from engine.sim.speculation import Speculation
from quizzes.experiments import Context, Result, arg, experiment


@experiment("E36")
def expected_tokens(
    ctx: Context,
    acceptance: float = arg(0.7, 0, 1),
    k: int = arg(4, 1, 16),
    output: int = arg(1500, 20, 4000),
    rows: int = arg(16, 1, 32),
) -> Result:
    """Count tokens per verified step when each of k drafts is right with probability a.

    A draft counts only if all drafts before it were right. The engine's scheduler runs with seeded drafts: the same
    everywhere.

    Returns:
        tokens_per_step [tokens]: Generated per row and step that verified drafts.
        accepted_per_step [drafts]
        acceptance_rate [share]: Accepted drafts over drafted ones: what vLLM logs. Less than `acceptance`, since a
            wrong draft ends the row.
        computed_per_token [positions]: Positions that went through the target for each token kept.
        steps_without, steps_with [steps]
    """
    speculation = Speculation(k, acceptance, seed=ctx.seed)
    blocks = rows * (-(-(output + k + 2) // 16) + 2) + 2
    scheduler = Scheduler(SchedulerConfig(rows * (k + 1), rows, output + 64), CacheConfig(blocks, 16))
    for index in range(rows):
        scheduler.add(Request(f"r{index}", [index], SamplingParams(max_tokens=output, ignore_eos=True)))
    drafted = accepted = verified = computed = generated = steps = 0
    while scheduler.has_unfinished():
        out = scheduler.schedule()
        result = ModelRunnerOutput({row.request_id: [7] for row in out.scheduled})
        speculation.answer(out, result)
        steps += 1
        for row in out.scheduled:
            if len(row.spec_token_ids) == k:  # near the end of a request fewer are wanted
                kept = len(result.sampled_token_ids[row.request_id])
                verified, drafted, accepted = verified + 1, drafted + k, accepted + kept - 1
                computed, generated = computed + row.num_tokens, generated + kept
        scheduler.update(out, result)
    return Result(
        tokens_per_step=generated / verified,
        accepted_per_step=accepted / verified,
        acceptance_rate=accepted / drafted,
        computed_per_token=computed / generated,
        steps_without=output,
        steps_with=steps,
    )

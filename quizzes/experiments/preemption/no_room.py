from typing import Literal

from engine.core.errors import RequestRejected
from quizzes.experiments import Ask, Context, Result, arg, experiment

Situation = Literal["newcomer", "growth", "prompt_too_long", "never_fits"]


@experiment("E53")
def no_room(
    ctx: Context,
    situation: Situation = "newcomer",
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
        finished, rejected [requests]
        num_preemptions
        peak_blocks [blocks]
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
    last = {
        "newcomer": Ask("last", prompt, output, arrival=1),
        "growth": Ask("last", prompt, output),
        "prompt_too_long": Ask("last", max_model_len, output, arrival=1),
        "never_fits": Ask("last", max(1, num_blocks * block_size + 2 - output), output, arrival=1),
    }[situation]
    engine.add(Ask("r0", prompt, output))
    engine.add(Ask("r1", prompt, output))
    if last.arrival:
        engine.step()
    code = ""
    try:
        engine.add(last)
    except RequestRejected as refusal:
        code = refusal.code
    engine.run()
    views = [step.why_not("last") for step in engine.steps] if not code else []
    refused = [view for view in views if view is not None]
    outcome = engine.outcomes.get("last")
    waited = outcome.admitted - outcome.arrival if outcome is not None else 0
    preempted = engine.num_preemptions
    return Result(
        outcome="rejected" if code else "preempts" if preempted else "waits" if waited else "runs",
        code=code,
        reason=str(refused[0].reason) if refused else "",
        finished=sum(o.finished is not None for o in engine.outcomes.values()),
        rejected=int(bool(code)),
        num_preemptions=preempted,
        peak_blocks=num_blocks - min(step.free_blocks for step in engine.steps),
        waited_steps=waited,
        blocks_needed=-(-(last.prompt + last.output - 1) // block_size),  # type: ignore[operator]
    )

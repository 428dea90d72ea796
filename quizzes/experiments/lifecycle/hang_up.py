from typing import Any

from quizzes.experiments import Ask, Context, Result, arg, experiment


@experiment("E66")
def hang_up(
    ctx: Context,
    prompt: int = arg(100, 1, 4000),
    output: int = arg(80, 2, 1000),
    at_step: int = arg(20, 0, 1000),
    num_blocks: int = arg(12, 2, 1000),
    block_size: int = arg(16, 1, 256),
    budget: int = arg(8192, 1, 8192),
) -> Result:
    """Abort a request while it waits, in its prefill or in its decode, and count what that frees.

    r0 has the engine to itself; r1 has the same lengths, arrives at step 1 and does not fit beside r0.

    Returns:
        Request r0 is aborted before step `at_step`; r1 waits for its memory.
        state: State of r0 at the abort: waiting, prefill or decode.
        blocks_before [blocks]: Blocks in use just before the abort.
        blocks_after [blocks]: Blocks in use just after it.
        freed [blocks]
        wasted_tokens [tokens]: Positions that were computed for r0.
        streamed_tokens [tokens]
        next_started [step]: The step that ran r1 first.
        next_would_start [step]: The same without the abort.
        saved_tokens [tokens]: Positions that r0 would still have computed.
    """
    settings: dict[str, Any] = {
        "num_blocks": num_blocks,
        "block_size": block_size,
        "max_num_batched_tokens": budget,
        "enable_prefix_caching": False,
    }
    asks = [Ask("r0", prompt, output), Ask("r1", prompt, output, arrival=1)]
    patient = ctx.core(**settings).run(asks)

    engine = ctx.core(traced=True, **settings)
    engine.add(asks[0])
    while engine.num_steps < at_step and engine.scheduler.has_unfinished():
        engine.step()
        if engine.num_steps == 1:
            engine.add(asks[1])
    outcome = engine.outcomes["r0"]
    state = "decode" if outcome.token_steps else "prefill" if outcome.computed_tokens else "waiting"
    before = engine.used_blocks
    engine.abort("r0")
    after = engine.used_blocks
    if "r1" not in engine.outcomes:
        engine.add(asks[1])
    engine.run()
    return Result(
        state="finished" if outcome.finished is not None else state,
        blocks_before=before,
        blocks_after=after,
        freed=before - after,
        wasted_tokens=outcome.computed_tokens,
        streamed_tokens=len(outcome.token_steps),
        next_started=engine.outcomes["r1"].admitted,
        next_would_start=patient.outcomes["r1"].admitted,
        saved_tokens=prompt + output - 1 - outcome.computed_tokens,
    )

from quizzes.experiments import Ask, Context, Result, arg, experiment
from quizzes.experiments.lifecycle._spy import Log, spying


@experiment("E14")
def one_request(
    ctx: Context,
    prompt: int = arg(50, 1, 20_000),
    output: int = arg(20, 1, 2000),
    block_size: int = arg(16, 1, 256),
    budget: int = arg(8192, 1, 16_384),
    shared: int = arg(0, 0, 20_000),
) -> Result:
    """Follow one request: when it takes blocks, when its first token comes, and how much KV it has at the end.

    shared: an earlier request had the same first tokens, whose blocks are still cached.

    Returns:
        A request alone in the engine. Steps count from 0.
        first_step_events: Events of the request's first step, in order. `forward` is the model; earlier events are the
            scheduler's.
        lookup_before_forward
        taken_in_forward [blocks]: Blocks taken between the start of a forward pass and its end.
        first_token [step]
        total_steps [steps]
        prefill_steps [steps]: Steps until the first token, that step included.
        alloc_steps [step]: Steps in which blocks were taken.
        blocks_at_start [blocks]: Owned after its first step.
        blocks_at_end [blocks]: Owned in its last step.
        computed_tokens [tokens]: Positions that went through the model.
        kv_tokens_end [tokens]: Positions whose KV existed when it ended; the last token was sampled and never
            computed.
        cached_tokens, output_tokens [tokens]
        free_after [blocks]
        still_cached [blocks]: Free blocks whose content can still be hit.
    """
    log = Log()
    num_blocks = -(-(prompt + output) // block_size) * 2 + 16
    engine = ctx.core(
        num_blocks=num_blocks,
        block_size=block_size,
        max_num_batched_tokens=budget,
        traced=True,
        make_scheduler=spying(log),
    )
    tokens = list(range(1, prompt + 1))
    shared = min(shared, prompt)
    if shared:
        engine.run([Ask("before", [*tokens[:shared], 10_000_000], 1)])
    log.entries.clear()
    begin = engine.num_steps
    before = engine.free_blocks
    engine.add(Ask("r", tokens, output))
    free, taken_at = before, []
    while engine.scheduler.has_unfinished():
        log.step = engine.num_steps - begin
        engine.step()
        if (log.step, "blocks_taken") in log.entries:
            taken_at.append(log.step)
        free = min(free, engine.free_blocks)
        if log.step == 0:
            at_start = num_blocks - engine.free_blocks
    engine.close()
    outcome = engine.outcomes["r"]
    first = [event for step, event in log.entries if step == 0]
    last = engine.steps[-1].rows["r"]
    return Result(
        first_step_events=first,
        lookup_before_forward=first.index("prefix_lookup") < first.index("forward"),
        taken_in_forward=sum(event == "blocks_taken" for event in first[first.index("forward") :]),
        first_token=outcome.token_steps[0] - begin,
        total_steps=engine.num_steps - begin,
        prefill_steps=outcome.token_steps[0] - begin + 1,
        alloc_steps=taken_at,
        blocks_at_start=at_start if output > 1 or taken_at != [0] else -(-prompt // block_size),
        blocks_at_end=-(-(last[0] + last[1]) // block_size),
        computed_tokens=outcome.computed_tokens,
        kv_tokens_end=last[0] + last[1],
        cached_tokens=outcome.cached_tokens,
        output_tokens=len(outcome.token_steps),
        free_after=engine.free_blocks,
        still_cached=engine.steps[-1].stats.num_evictable_blocks,
    )

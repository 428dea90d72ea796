from quizzes.experiments import Ask, Context, Result, arg, experiment


@experiment("E43", "E10")
def isolation(
    ctx: Context,
    adapters: list[str] = arg(["-", "a", "b", "a", "-"], count=(1, 60)),
    prompt: int = arg(100, 1, 4000),
    block_size: int = arg(16, 1, 256),
    max_loras: int = arg(8, 1, 64),
) -> Result:
    """Send one prompt under several adapters and see which requests reuse KV, and how often adapters are loaded.

    Each entry of `adapters` is one request ("-": the base), sent when the one before has finished.

    Returns:
        Requests with one prompt, one after the other.
        cached_tokens [tokens]: Prefix-cache hit of each.
        computed_tokens [tokens]: Prompt tokens that went through the model, all together.
        kv_copies [copies]: Copies of the prompt's blocks in the cache: one for each adapter that sent it, the base
            included.
        loads [loads]: Adapters brought to the device.
        requests [requests]
    """
    engine = ctx.core(block_size=block_size, scheduler={"max_loras": max_loras}, traced=True)
    text = list(range(prompt))
    for index, name in enumerate(adapters):
        engine.add(Ask(f"r{index}", text, 1, lora=None if name == "-" else name))
        while engine.scheduler.has_unfinished():
            engine.step()
    engine.close()
    hits = [engine.outcomes[f"r{index}"].cached_tokens for index in range(len(adapters))]
    full = prompt // block_size
    cached_blocks = len(engine.scheduler.kv.pool.cached)
    return Result(
        cached_tokens=hits,
        computed_tokens=len(adapters) * prompt - sum(hits),
        kv_copies=cached_blocks // full if full else 0,
        loads=sum(step.stats.num_lora_loads for step in engine.steps),
        requests=len(adapters),
    )

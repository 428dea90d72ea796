from engine.sim.cost import CostModel, StepLoad, pairs_of
from quizzes.experiments import Ask, Context, Result, arg, experiment
from quizzes.experiments.simulated import deploy


@experiment("E30")
def chunked_cost(
    ctx: Context,
    prompt: int = arg(4000, 1, 200_000),
    chunk: int = arg(512, 1, 200_000),
    model: str = "llama-3-8b",
    hardware: str = "h100",
    block_size: int = arg(16, 1, 256),
) -> Result:
    """Price a prompt cut into chunks: each chunk reads the weights once, and the earlier KV again.

    The prompt runs alone on the engine, with a token budget of `chunk` per step.

    Returns:
        chunks [steps]: Forward passes over the weights for this prompt.
        kv_reads [positions]: Positions whose KV attention reads, once per chunk: each chunk's own and all before it.
        kv_factor [x]: kv_reads over the prompt's length; 1 for a prompt in one piece.
        computed [tokens]: Positions that went through the model.
        pairs [pairs]: (query, key) pairs: the arithmetic of attention.
        largest_step [tokens]
        blocks_at_end [blocks]: Blocks held after the prompt, which do not depend on the chunks.
        seconds_ratio [x]: Prefill time over that of one piece, by the simulator's cost model for this device.
    """
    engine = ctx.core(max_num_batched_tokens=chunk, num_blocks=200_000, block_size=block_size, traced=True)
    request = engine.add(Ask("r", prompt, output=2))
    while not engine.outcomes["r"].token_steps:
        engine.step()
    rows = [step.rows["r"] for step in engine.steps]
    blocks = len(request.blocks)
    engine.close()

    cost = CostModel(deploy(model, hardware))

    def seconds(chunks: list[tuple[int, int]]) -> float:
        total = 0.0
        for start, count in chunks:
            last = start + count == prompt
            load = StepLoad(
                1, count, int(last), prefill_pairs=pairs_of(start, count, None), prefill_context=start + count
            )
            total += cost.seconds(load)
        return total

    reads = sum(start + count for start, count in rows)
    return Result(
        chunks=len(rows),
        kv_reads=reads,
        kv_factor=reads / prompt,
        computed=sum(count for _, count in rows),
        pairs=sum(pairs_of(start, count, None) for start, count in rows),
        largest_step=max(count for _, count in rows),
        blocks_at_end=blocks,
        seconds_ratio=seconds(rows) / seconds([(0, prompt)]),
    )

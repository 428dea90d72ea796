from engine.core.request import Request
from engine.sampling_params import SamplingParams
from engine.sim.disaggregation import place_blocks
from quizzes.experiments import Ask, Context, Result, arg, experiment


@experiment("E45")
def handoff(
    ctx: Context,
    prompt: int = arg(1000, 1, 20_000),
    block_size: int = arg(16, 1, 256),
    output: int = arg(20, 2, 500),
    free_blocks: int = arg(5000, 1, 20_000),
) -> Result:
    """Count what a decode replica still computes after a prompt's KV has arrived in whole blocks.

    The KV is placed as the simulator's decode pool places it, then the real scheduler admits the request. free_blocks:
    size of the cache, which must hold the request; blocks that find no room are computed again.

    Returns:
        One request after its prefill, on the decode replica's scheduler.
        blocks_placed [blocks]: Full blocks of the prompt in the cache when the request arrives.
        cached_tokens [tokens]: Tokens that admission finds in the cache.
        first_step_tokens [tokens]: Tokens of its first step here: the rest of the last block and the first token.
        recomputed_prompt_tokens [tokens]
        steps [steps]: Steps on this replica, for all but the first output token.
    """
    engine = ctx.core(
        num_blocks=free_blocks, block_size=block_size, max_num_batched_tokens=32_768, traced=True
    )
    tokens = [*range(prompt), 10**6]  # the first output token came with the prefill
    core = Request("r", tokens, SamplingParams(max_tokens=output - 1))
    placed = place_blocks(engine.scheduler.kv, core, prompt)
    engine.add(Ask("r", tokens, output - 1))
    first = engine.step()
    (_, computed) = first.rows["r"]
    while engine.scheduler.has_unfinished():
        engine.step()
    engine.close()
    cached = engine.outcomes["r"].cached_tokens
    return Result(
        blocks_placed=placed,
        cached_tokens=cached,
        first_step_tokens=computed,
        recomputed_prompt_tokens=max(0, prompt - cached),
        steps=engine.num_steps,
    )

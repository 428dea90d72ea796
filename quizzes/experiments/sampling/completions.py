from engine.core.request import Request
from engine.sampling_params import SamplingParams
from quizzes.experiments import Ask, Context, Result, arg, experiment


@experiment("E40")
def completions(
    ctx: Context,
    n: int = arg(3, 1, 64),
    best_of: int | None = arg(None, 1, 64),
    prompt: int = arg(100, 1, 20_000),
    output: int = arg(20, 1, 2000),
    block_size: int = arg(16, 1, 256),
) -> Result:
    """Expand n and best_of into requests, run them on the scheduler and count what they share.

    best_of: compute this many and return the best n; None is n. A value smaller than n is refused.

    Returns: Cost of one call.
        computed, returned [completions]
        child_requests [requests]: Requests that the scheduler sees.
        seeds [seed]: Seeds of the children when the call has seed 100.
        prompt_tokens_computed [tokens]: All children together.
        prompt_tokens_cached, generated_tokens [tokens]; steps [steps]; peak_blocks [blocks]
        peak_blocks_unshared [blocks]: The same if every child computed and kept the whole prompt.
    """
    from engine.frontend.parallel_sampling import fan_out

    params = SamplingParams(n=n, best_of=best_of, max_tokens=output)
    request = Request("call", list(range(prompt)), params, seed=100)
    children = list(fan_out(request, params.num_completions))
    engine = ctx.core(block_size=block_size, traced=True)
    engine.run(Ask(child.request_id, child.prompt_token_ids, output) for child in children)
    # A request computes its prompt and all its tokens but the last.
    cached = sum(engine.cached_tokens)
    return Result(
        computed=len(children),
        returned=n,
        child_requests=len(children),
        seeds=[child.seed for child in children],
        prompt_tokens_computed=len(children) * prompt - cached,
        prompt_tokens_cached=cached,
        generated_tokens=len(children) * output,
        steps=engine.num_steps,
        peak_blocks=engine.peak_blocks,
        peak_blocks_unshared=len(children) * -(-(prompt + output - 1) // block_size),
    )

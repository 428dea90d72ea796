from typing import Any

from quizzes.experiments import Context, Result, arg, experiment, greedy


@experiment("E40", seconds=30, megabytes=2500)
def beam(
    ctx: Context,
    beam_width: int = arg(4, 1, 8),
    max_tokens: int = arg(8, 1, 32),
    prompt: int = arg(100, 1, 256),
    block_size: int = arg(16, 4, 64),
) -> Result:
    """Run beam search above the engine: the requests it makes and the blocks it needs with and without sharing.

    End-of-sequence is ignored, so that every beam reaches max_tokens.

    Returns:
        One beam search with the shop model.
        requests [requests]: One-token requests that the engine served.
        candidates [tokens]: Continuations that were ranked.
        beams [beams]: Returned.
        computed_tokens, cached_tokens [tokens]
        cow_copies [blocks]: Half-full blocks that an engine with forks (vLLM V0) copies in this search.
        peak_blocks_cow, peak_blocks_unshared [blocks]
        best_logprob [nats]
        greedy_logprob [nats]: Log-probability of the greedy continuation of the same length.
    """
    from engine import SamplingParams
    from engine.frontend.beam_search import BeamSearchParams, beam_search

    tokens = [20 + (7 * i) % 1500 for i in range(prompt)]
    counted = {"requests": 0, "candidates": 0}
    with ctx.llm(block_size=block_size, traced=True) as llm:

        def generate(prompts: list[list[int]], params: SamplingParams) -> Any:
            outputs = llm.generate(prompts, params, use_tqdm=False)
            counted["requests"] += len(outputs)
            counted["candidates"] += sum(len(output.outputs[0].logprobs[0]) for output in outputs)
            return outputs

        params = BeamSearchParams(beam_width, max_tokens, ignore_eos=True)
        found = beam_search(tokens, params, generate, block_size=block_size)
        (output,) = llm.generate([tokens], greedy(max_tokens, logprobs=1), use_tqdm=False)
    memory = found.memory
    return Result(
        requests=counted["requests"],
        candidates=counted["candidates"],
        beams=len(found.sequences),
        computed_tokens=memory.num_computed_tokens,
        cached_tokens=memory.num_cached_tokens,
        cow_copies=memory.cow_copies,
        peak_blocks_cow=memory.peak_blocks_cow,
        peak_blocks_unshared=memory.peak_blocks_unshared,
        best_logprob=max(beam.cum_logprob for beam in found.sequences),
        greedy_logprob=output.outputs[0].cumulative_logprob,
    )

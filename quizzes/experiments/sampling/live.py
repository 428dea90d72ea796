"""Beam search, seeds and answer lengths of the live engine."""

import statistics
from typing import Any

from quizzes.experiments import Context, Result, arg, experiment, generate, greedy


@experiment("E40", seconds=30, megabytes=2500)
def beam(
    ctx: Context,
    beam_width: int = arg(4, 1, 8),
    max_tokens: int = arg(8, 1, 32),
    prompt: int = arg(100, 1, 256),
    block_size: int = arg(16, 4, 64),
) -> Result:
    """Run beam search above the engine: the requests it makes and the blocks it needs with and without sharing.

    Returns: One beam search with the shop model. End-of-sequence is ignored: every beam reaches max_tokens.
        requests [requests]: One-token requests that the engine served.
        candidates [tokens]: Continuations that were ranked.
        beams [beams]: Returned.
        computed_tokens, cached_tokens [tokens]
        cow_copies [blocks]: Half-full blocks that an engine with forks (vLLM V0) copies in this search.
        peak_blocks_cow, peak_blocks_unshared [blocks]; best_logprob [nats]
        greedy_logprob [nats]: Log-probability of the greedy continuation of the same length.
    """
    from engine import SamplingParams
    from engine.frontend.beam_search import BeamSearchParams, beam_search

    tokens = [20 + (7 * i) % 1500 for i in range(prompt)]
    ranked: list[int] = []
    with ctx.llm(block_size=block_size, traced=True) as llm:

        def ask(prompts: list[list[int]], params: SamplingParams) -> Any:
            outputs = llm.generate(prompts, params, use_tqdm=False)
            ranked.extend(len(output.outputs[0].logprobs[0]) for output in outputs)
            return outputs

        params = BeamSearchParams(beam_width, max_tokens, ignore_eos=True)
        search = beam_search(tokens, params, ask, block_size=block_size)
        (output,) = generate(llm, [tokens], greedy(max_tokens, logprobs=1))
    memory = search.memory
    return Result(
        requests=len(ranked),
        candidates=sum(ranked),
        beams=len(search.sequences),
        computed_tokens=memory.num_computed_tokens,
        cached_tokens=memory.num_cached_tokens,
        cow_copies=memory.cow_copies,
        peak_blocks_cow=memory.peak_blocks_cow,
        peak_blocks_unshared=memory.peak_blocks_unshared,
        best_logprob=max(beam.cum_logprob for beam in search.sequences),
        greedy_logprob=output.cumulative_logprob,
    )


@experiment("E39", seconds=60, megabytes=2500, determinism="statistical")
def lengths(
    ctx: Context,
    cold: float = arg(0.3, 0, 5),
    hot: float = arg(2.0, 0, 5),
    samples: int = arg(12, 4, 32),
    max_tokens: int = arg(96, 16, 128),
) -> Result:
    """Compare the spread of answer lengths of the shop model at two temperatures.

    Returns: Lengths of `samples` answers to each of a few shop questions; spreads are means over the questions.
        cold_spread [tokens]: Standard deviation at the lower temperature.
        hot_spread, cold_mean, hot_mean [tokens]
        cold_cut, hot_cut [share]: Answers that reached max_tokens.
    """
    from engine import SamplingParams
    from engine.zoo.corpus import draw_cases

    prompts = [case.prompt for case in draw_cases(60, seed=3) if case.language == "en"][:6]
    sizes: dict[str, list[int]] = {}
    with ctx.llm(max_num_seqs=64) as llm:
        for name, temperature in (("cold", cold), ("hot", hot)):
            pairs = [
                (prompt, SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens))
                for prompt in prompts
                for seed in range(samples)
            ]
            answers = generate(llm, *map(list, zip(*pairs, strict=True)))
            sizes[name] = [len(answer.token_ids) for answer in answers]

    def spread(sizes: list[int]) -> float:
        groups = [sizes[start : start + samples] for start in range(0, len(sizes), samples)]
        return statistics.fmean(map(statistics.pstdev, groups))

    return Result(
        **{f"{name}_spread": spread(of_run) for name, of_run in sizes.items()},
        **{f"{name}_mean": statistics.fmean(of_run) for name, of_run in sizes.items()},
        **{f"{name}_cut": of_run.count(max_tokens) / len(of_run) for name, of_run in sizes.items()},
    )


@experiment("E39", seconds=30, megabytes=2500)
def seeds(
    ctx: Context,
    seed: int = arg(7, 0, 2_147_483_648),
    n: int = arg(4, 2, 8),
    others: int = arg(6, 1, 16),
    max_tokens: int = arg(16, 4, 48),
    temperature: float = arg(1.5, above=0, high=5),
) -> Result:
    """Check that a seed fixes a request's noise whatever the batch, and that n completions have n seeds.

    Returns: One request alone, again, among `others`, and as one of n.
        same_alone_and_in_a_batch: The request gives the same tokens alone and in the batch.
        same_twice
        distinct_of_n [completions]: Different ones among the n completions of one call.
        nth_is_seed_plus_index: Whether completion i of a call with seed s is the one that seed s + i gives alone.
    """
    from engine import SamplingParams

    prompt = "Our readers like"
    settings: dict[str, Any] = {"temperature": temperature, "max_tokens": max_tokens, "ignore_eos": True}
    mine = SamplingParams(seed=seed, **settings)
    with ctx.llm(max_num_seqs=32) as llm:

        def tokens(prompts: list[str], params: list[SamplingParams]) -> list[list[int]]:
            outputs = llm.generate(prompts, params, use_tqdm=False)
            return [completion.token_ids for output in outputs for completion in output.outputs]

        (alone,) = tokens([prompt], [mine])
        (again,) = tokens([prompt], [mine])
        crowd = [SamplingParams(seed=1000 + i, **settings) for i in range(others)]
        (among, *_) = tokens([prompt, *[f"{prompt} {i}" for i in range(others)]], [mine, *crowd])
        family = tokens([prompt], [SamplingParams(seed=seed, n=n, **settings)])
        singles = tokens([prompt] * n, [SamplingParams(seed=seed + i, **settings) for i in range(n)])
    return Result(
        same_alone_and_in_a_batch=alone == among,
        same_twice=alone == again,
        distinct_of_n=len({tuple(one) for one in family}),
        nth_is_seed_plus_index=family == singles,
    )

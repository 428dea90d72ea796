from typing import Any

from quizzes.experiments import Context, Result, arg, experiment


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

    Samples the same request alone, again, among `others`, and as one of n.

    Returns:
        Completions of one prompt at temperature 1.
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

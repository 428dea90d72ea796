"""The KV cache and chunked prefill of the live engine."""

from typing import Any

from quizzes.experiments import Context, Result, arg, experiment, greedy

SAME = 1e-3


@experiment("E30", seconds=20)
def chunked_equality(
    ctx: Context,
    prompt: int = arg(300, 2, 1500),
    chunk: int = arg(64, 1, 1500),
    generated: int = arg(8, 1, 32),
) -> Result:
    """Compare logits of a prompt computed in chunks with those of the same prompt in one piece.

    The model `shop` reads a random prompt both ways, then decodes greedily.

    Returns:
        difference: Largest, of the log-probabilities of the first token's top 20.
        is_same: The generated tokens are the same, and the difference is that of rounding.
        tokens: The first generated ones, of the prompt in one piece.
    """
    start = [ctx.rng.randrange(10, 2000) for _ in range(prompt)]
    whole, reference = _run(ctx, start, 2048, generated)
    chunked, found = _run(ctx, start, chunk, generated)
    difference = max(
        abs(reference[token] - found.get(token, float("-inf"))) for token in list(reference)[:20]
    )
    return Result(difference=difference, is_same=whole == chunked and difference < SAME, tokens=whole)


def _run(ctx: Context, prompt: list[int], budget: int, generated: int) -> tuple[list[int], dict[int, float]]:
    """Generated tokens and log-probabilities of the first one's top 20."""
    params = greedy(generated, logprobs=20)
    with ctx.llm(
        max_num_batched_tokens=budget,
        max_num_seqs=1,
        num_gpu_blocks_override=128,
        enable_prefix_caching=False,
    ) as llm:
        output: Any = llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)[0].outputs[0]
    first = output.logprobs[0]
    return list(output.token_ids), {token: entry.logprob for token, entry in first.items()}


@experiment("E25", determinism="statistical", seconds=20)
def kv_cache_live(ctx: Context, prompt: int = arg(200, 8, 1000), generated: int = arg(12, 2, 64)) -> Result:
    """Time greedy decoding with the KV cache and without it, and compare the tokens.

    Without the cache, the model `shop` gets a new request for each token.

    Returns:
        is_same: Both wrote the same tokens.
        ratio [x]: Time without over time with the cache, median of pairs.
        lo, hi; positions_with, positions_without [positions]
    """
    with ctx.llm(
        enable_prefix_caching=False, max_num_batched_tokens=2048, num_gpu_blocks_override=128
    ) as llm:
        vocabulary = llm.llm_engine.engine_core.config.model.vocab_size
        start = [ctx.rng.randrange(10, vocabulary) for _ in range(prompt)]

        def cached() -> list[int]:
            return _continue(llm, start, greedy(generated))

        def bare() -> list[int]:
            tokens: list[int] = []
            for _ in range(generated):
                once = greedy(1)
                tokens += _continue(llm, start + tokens, once)
            return tokens

        is_same = cached() == bare()
        from quizzes.experiments import paired_ratio

        ratio = paired_ratio(bare, cached, seconds=6, max_repeats=9, min_repeats=3)
    return Result(
        is_same=is_same,
        ratio=ratio.median,
        lo=ratio.lo,
        hi=ratio.hi,
        positions_with=prompt + generated - 1,
        positions_without=generated * prompt + generated * (generated - 1) // 2,
    )


def _continue(llm: Any, tokens: list[int], params: Any) -> list[int]:
    output = llm.generate({"prompt_token_ids": tokens}, params, use_tqdm=False)[0]
    return list(output.outputs[0].token_ids)

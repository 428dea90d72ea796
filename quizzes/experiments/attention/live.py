"""The KV cache and chunked prefill of the live engine."""

import math
from typing import Any

from quizzes.experiments import Context, Result, arg, experiment, generate, greedy, paired_ratio

SAME = 1e-3


@experiment("E30", seconds=20)
def chunked_equality(
    ctx: Context,
    prompt: int = arg(300, 2, 1500),
    chunk: int = arg(64, 1, 1500),
    generated: int = arg(8, 1, 32),
) -> Result:
    """Compare logits of a prompt computed in chunks with those of the same prompt in one piece.

    Returns: The model `shop` reads a random prompt both ways, then decodes greedily.
        difference: Largest, of the log-probabilities of the first token's top 20.
        is_same: The generated tokens are the same, and the difference is that of rounding.
        tokens: The first generated ones, of the prompt in one piece.
    """
    start = [ctx.rng.randrange(10, 2000) for _ in range(prompt)]

    def run(budget: int) -> Any:
        with ctx.llm(
            max_num_batched_tokens=budget,
            max_num_seqs=1,
            num_gpu_blocks_override=128,
            enable_prefix_caching=False,
        ) as llm:
            return generate(llm, [start], greedy(generated, logprobs=20))[0]

    whole, chunked = run(2048), run(chunk)
    reference, ours = whole.logprobs[0], chunked.logprobs[0]
    difference = max(
        abs(reference[token].logprob - ours[token].logprob) if token in ours else math.inf
        for token in list(reference)[:20]
    )
    tokens = list(whole.token_ids)
    is_same = tokens == list(chunked.token_ids) and difference < SAME
    return Result(difference=difference, is_same=is_same, tokens=tokens)


@experiment("E25", determinism="statistical", seconds=20)
def kv_cache_live(ctx: Context, prompt: int = arg(200, 8, 1000), generated: int = arg(12, 2, 64)) -> Result:
    """Time greedy decoding with the KV cache and without it, and compare the tokens.

    Returns: The model `shop`; without the cache it gets a new request for each token.
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
            return list(generate(llm, [start], greedy(generated))[0].token_ids)

        def bare() -> list[int]:
            tokens: list[int] = []
            for _ in range(generated):
                tokens += generate(llm, [start + tokens], greedy(1))[0].token_ids
            return tokens

        is_same = cached() == bare()
        ratio = paired_ratio(bare, cached, seconds=6, max_repeats=9, min_repeats=3)
    return Result(
        is_same=is_same,
        ratio=ratio.median,
        **ratio.interval,
        positions_with=prompt + generated - 1,
        positions_without=generated * prompt + generated * (generated - 1) // 2,
    )

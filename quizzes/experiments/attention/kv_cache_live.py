from typing import Any

from quizzes.experiments import Context, Result, arg, experiment, greedy


@experiment("E25", determinism="statistical", seconds=20)
def kv_cache_live(ctx: Context, prompt: int = arg(200, 8, 1000), generated: int = arg(12, 2, 64)) -> Result:
    """Time greedy decoding with the KV cache and without it, and compare the tokens.

    Without the cache, the model `shop` gets a new request for each token.

    Returns:
        is_same: Both wrote the same tokens.
        ratio [x]: Time without over time with the cache, median of pairs.
        lo, hi
        positions_with, positions_without [positions]
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
        from quizzes.experiments.measure import paired_ratio

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

from quizzes.experiments import Context, Result, arg, experiment, greedy, paired_ratio


@experiment("E07", determinism="statistical", seconds=30)
def cached_ttft(ctx: Context, prompt: int = arg(800, 32, 1500), answer: int = arg(12, 1, 32)) -> Result:
    """Time the first token of a live engine with a cold and with a warm prefix cache, and compare the answers.

    The shipped model reads one prompt of `prompt` tokens again and again.

    Returns:
        Cold over warm; above 1 the cache helps.
        speedup, lo [x]
        hi [x]: Bootstrap 95 % interval.
        computed_cold, computed_warm [tokens]
        tokens_equal: The greedy answer after a hit equals that after a full prefill, token for token.
        repeats
    """
    with ctx.llm(max_model_len=prompt + answer + 16) as llm:
        tokens = [3 + 7 * i % 2000 for i in range(prompt)]
        ask = {"prompt_token_ids": tokens}
        first = greedy(1)
        whole = greedy(answer)

        def cold() -> None:
            llm.reset_prefix_cache()
            llm.generate([ask], first, use_tqdm=False)

        def warm() -> None:
            llm.generate([ask], first, use_tqdm=False)

        ratio = paired_ratio(cold, warm, seconds=4.0)
        llm.reset_prefix_cache()
        (computed,) = llm.generate([ask], whole, use_tqdm=False)
        (hit,) = llm.generate([ask], whole, use_tqdm=False)
    return Result(
        speedup=ratio.median,
        lo=ratio.lo,
        hi=ratio.hi,
        computed_cold=prompt - computed.num_cached_tokens,
        computed_warm=prompt - hit.num_cached_tokens,
        tokens_equal=computed.outputs[0].token_ids == hit.outputs[0].token_ids,
        repeats=ratio.repeats,
    )

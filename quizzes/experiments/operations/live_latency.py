import time

from quizzes.experiments import Context, Result, arg, experiment, greedy


@experiment("E51", determinism="statistical")
def live_latency(
    ctx: Context, max_tokens: int = arg(48, 2, 128), prompt_words: int = arg(200, 1, 300)
) -> Result:
    """Measure TTFT, inter-token latency and TPOT of one live stream, and check how they relate.

    Records the times of the tokens as a client sees them and as the engine does.

    Returns:
        One streamed answer of the shop model.
        ttft_ms, itl_mean_ms, itl_max_ms [ms]
        tpot_ms [ms]: (last token - first token) / (n - 1), by the engine's own clock.
        e2e_ms [ms]
        gaps [gaps]: Inter-token latencies of one request: a distribution.
        tpots: TPOT values of one request.
        identity_error_ms [ms]: |e2e - (TTFT + (n - 1) x TPOT)|.
        parts_error_ms [ms]: |queue + prefill + decode - (last token - queued)|.
    """
    from engine import SamplingParams

    params = greedy(max_tokens)
    prompt = "lamp " * prompt_words
    with ctx.llm(max_model_len=1024, enable_prefix_caching=False) as llm:
        llm.generate("warm up", SamplingParams(temperature=0, max_tokens=2), use_tqdm=False)
        began = time.perf_counter()
        moments = []
        for delta in llm.stream(prompt, params):
            moments.append(time.perf_counter())
            last = delta
    gaps = [later - earlier for earlier, later in zip(moments, moments[1:], strict=False)]
    metrics = last.metrics
    ttft, e2e = moments[0] - began, moments[-1] - began
    tpot = metrics.time_per_output_token
    parts = metrics.queued_time + metrics.prefill_time + metrics.decode_time
    return Result(
        ttft_ms=1000 * ttft,
        itl_mean_ms=1000 * sum(gaps) / len(gaps),
        itl_max_ms=1000 * max(gaps),
        tpot_ms=1000 * tpot,
        e2e_ms=1000 * e2e,
        gaps=len(gaps),
        tpots=1,
        identity_error_ms=1000 * abs(e2e - ttft - (metrics.num_generation_tokens - 1) * tpot),
        parts_error_ms=1000 * abs(parts - (metrics.last_token_ts - metrics.queued_ts)),
    )

"""Cold start, latency and shadow traffic of the live engine."""

import time
from itertools import pairwise
from typing import Any, Literal

from quizzes.experiments import Context, Result, arg, experiment, generate, greedy
from quizzes.experiments.operations.gateway import Backend, Gateway


@experiment("E59", determinism="statistical", seconds=40)
def first_token(
    ctx: Context, disk_mb_per_s: float = arg(20.0, 1, 10_000), tokens: int = arg(16, 1, 64)
) -> Result:
    """Start the shipped model with weights on a slow disk and time its first two requests.

    The weight file is read in pieces at disk_mb_per_s before the engine loads it; everything else runs at this
    machine's speed. With a slow disk reading dominates, with a fast one loading and the first request.

    Returns: Wall clock of one start; the first request of a process against the second.
        read [s]: Reading the weight file at the given rate.
        load [s]: Building the model and the KV pool, weights into place, kernels made ready.
        first_request [s]
        second_request [s]: The same request again, from a fresh cache: what warming up is worth.
        read_share [share]; cold_over_warm [x]
    """
    from engine import SamplingParams
    from engine.zoo.registry import resolve

    moments = [time.perf_counter()]
    size = 0
    for path in sorted(resolve("shop").glob("*.safetensors")):
        with path.open("rb") as file:
            while piece := file.read(1 << 18):
                size += len(piece)
                due = moments[0] + size / (disk_mb_per_s * 1e6)
                time.sleep(max(0.0, due - time.perf_counter()))
    moments.append(time.perf_counter())
    with ctx.llm(enable_prefix_caching=False) as llm:
        moments.append(time.perf_counter())
        for _ in range(2):
            llm.generate(["A first request"], SamplingParams(max_tokens=tokens, ignore_eos=True))
            moments.append(time.perf_counter())
    read, load, first, second = (end - start for start, end in pairwise(moments))
    return Result(
        read=read,
        load=load,
        first_request=first,
        second_request=second,
        read_share=read / (read + load + first),
        cold_over_warm=first / second,
    )


@experiment("E51", determinism="statistical")
def live_latency(
    ctx: Context, max_tokens: int = arg(48, 2, 128), prompt_words: int = arg(200, 1, 300)
) -> Result:
    """Measure TTFT, inter-token latency and TPOT of one live stream, and check how they relate.

    Returns: One streamed answer of the shop model, timed by a client and by the engine.
        ttft_ms, itl_mean_ms, itl_max_ms [ms]
        tpot_ms [ms]: (last token - first token) / (n - 1), by the engine's own clock.
        e2e_ms [ms]
        gaps [gaps]: Inter-token latencies of one request: a distribution.
        tpots: TPOT values of one request.
        identity_error_ms [ms]: |e2e - (TTFT + (n - 1) x TPOT)|.
        parts_error_ms [ms]: |queue + prefill + decode - (last token - queued)|.
    """
    prompt = "lamp " * prompt_words
    with ctx.llm(max_model_len=1024, enable_prefix_caching=False) as llm:
        generate(llm, "warm up", greedy(2, ignore_eos=False))
        began = time.perf_counter()
        stream = [(time.perf_counter(), delta) for delta in llm.stream(prompt, greedy(max_tokens))]
    moments = [began, *(moment for moment, _ in stream)]
    ttft, *gaps = (later - earlier for earlier, later in pairwise(moments))
    metrics = stream[-1][1].metrics
    e2e, tpot = moments[-1] - moments[0], metrics.time_per_output_token
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


TITLES = ("lamps", "shelves", "chairs", "tables", "clocks", "mirrors", "carpets", "curtains")


@experiment("E49")
def shadow(
    ctx: Context,
    requests: int = arg(8, 1, 8),
    candidate: Literal["same", "preempting", "other_model"] = "same",
    max_tokens: int = arg(24, 1, 48),
) -> Result:
    """Mirror live requests to a candidate and compare greedy answers; then cut over; then roll back.

    same: the same model with another token budget. preempting: with so few blocks that requests are preempted.
    other_model: the small draft model.

    Returns:
        requests
        answers_from_old [requests]: Answers that users got from the old backend.
        compared, different [requests]; difference_share [share]; calls_per_request [calls]
        after_cutover_from_new [requests]: Answers from the new backend to the same calls, with swapped weights.
        after_rollback_from_old [requests]; lines_changed_in_application
    """
    candidates: dict[str, dict[str, Any]] = {
        "same": {"max_num_batched_tokens": 64},
        "preempting": {"num_gpu_blocks_override": 8},
        "other_model": {"model": "shop-draft"},
    }
    common: dict[str, Any] = {"max_model_len": 96}
    with ctx.llm(**common) as old, ctx.llm(**common | candidates[candidate]) as new:

        def backend(llm: Any) -> Backend:
            return lambda user, prompt: generate(llm, prompt, greedy(max_tokens))[0].text

        gateway = Gateway({"old": backend(old), "new": backend(new)}, {"old": 1.0, "new": 0.0})

        def application(weights: dict[str, float], shadow: str | None = None) -> None:
            gateway.weights, gateway.shadow = weights, shadow
            for index in range(requests):
                gateway.answer(
                    f"user-{index}", f"I am customer {index}. When will my {TITLES[index]} arrive?"
                )

        application({"old": 1.0, "new": 0.0}, shadow="new")
        from_old, calls = gateway.served["old"], sum(gateway.calls.values())
        application({"old": 0.0, "new": 1.0})
        application({"old": 1.0, "new": 0.0})
    return Result(
        requests=requests,
        answers_from_old=from_old,
        compared=gateway.shadow_compared,
        different=gateway.shadow_different,
        difference_share=gateway.shadow_different / gateway.shadow_compared,
        calls_per_request=calls / requests,
        after_cutover_from_new=gateway.served["new"],
        after_rollback_from_old=gateway.served["old"] - from_old,
        lines_changed_in_application=0,
    )

from typing import Any

from engine.sim.report import percentiles
from engine.sim.run import make_engine
from engine.sim.workload import Lengths, Workload
from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.simulated import deploy


@experiment("E51")
def latency_parts(
    ctx: Context,
    rate: float = arg(5.0, above=0, high=500),
    requests: int = arg(300, 1, 1000),
    prompt: int = arg(1000, 1, 8000),
    output: int = arg(100, 1, 1000),
    max_num_seqs: int = arg(16, 1, 1024),
) -> Result:
    """Split the time to first token into queueing and prefill (simulated GPU).

    Poisson arrivals on llama-3.1-8b and an H100; every moment is an event of the scheduler.

    Returns:
        Means over all requests, and the tail.
        ttft_ms, queue_ms [ms]
        prefill_ms [ms]: Time from a request's first step to its first token.
        queue_share [share]: Queueing over the mean TTFT.
        ttft_p99_ms, queue_p99_ms, prefill_p99_ms, tpot_ms, e2e_ms [ms]
        sum_error_ms [ms]: The largest |TTFT - queue - prefill| and |e2e - TTFT - (n - 1) x TPOT| over all requests.
        utilisation [share]: Share of the time spent in steps.
    """
    deployment = deploy("llama-3.1-8b", "h100", max_num_seqs=max_num_seqs)
    engine = make_engine(deployment, enable_prefix_caching=False)
    engine.run(Workload(requests, rate, Lengths(prompt, prompt), Lengths(output, output), seed=ctx.seed))
    records = engine.recorder.finished
    prefills = [record.first_token - record.scheduled for record in records]
    ttft: Any = percentiles([record.ttft for record in records])
    queue: Any = percentiles([record.queue_time for record in records])
    prefill: Any = percentiles(prefills)
    errors = [abs(r.ttft - r.queue_time - p) for r, p in zip(records, prefills, strict=True)]
    errors += [abs(r.e2e - r.ttft - (r.num_tokens - 1) * r.tpot) for r in records]
    seconds = max(record.last_token for record in records) - min(record.arrival for record in records)
    ms = 1000.0
    return Result(
        ttft_ms=ms * ttft.mean,
        queue_ms=ms * queue.mean,
        prefill_ms=ms * prefill.mean,
        queue_share=queue.mean / ttft.mean,
        ttft_p99_ms=ms * ttft.p99,
        queue_p99_ms=ms * queue.p99,
        prefill_p99_ms=ms * prefill.p99,
        tpot_ms=ms * sum(r.tpot for r in records) / len(records),
        e2e_ms=ms * sum(r.e2e for r in records) / len(records),
        sum_error_ms=ms * max(errors),
        utilisation=engine.recorder.step_seconds / seconds,
    )

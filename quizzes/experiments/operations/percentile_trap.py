import math

from engine.sim.report import percentiles
from quizzes.experiments import Context, Result, arg, experiment

TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
"""Seconds; vLLM v1/metrics/buckets.py."""


@experiment("E51")
def percentile_trap(
    ctx: Context,
    fast_n: int = arg(900, 1, 100_000),
    slow_n: int = arg(100, 1, 100_000),
    fast_ms: int = arg(120, 1, 100_000),
    slow_ms: int = arg(900, 1, 100_000),
) -> Result:
    """Show that the mean of replicas' p99 is not the p99 of all requests, and that a histogram's p99 is an estimate.

    `fast_n` requests take `fast_ms` on one replica and `slow_n` take `slow_ms` on the other.

    Returns:
        TTFT of two replicas, one of them slow.
        p99_all_ms [ms]
        p99_mean_ms [ms]: The mean of the two replicas' p99.
        p99_fast_ms, p99_slow_ms [ms]
        p99_histogram_ms [ms]: p99 of all requests as PromQL's histogram_quantile interpolates it from the buckets.
        bucket_low_ms, bucket_high_ms [ms]
    """
    fast, slow = [fast_ms / 1000] * fast_n, [slow_ms / 1000] * slow_n
    p_fast, p_slow, p_all = (_p99(values) for values in (fast, slow, fast + slow))
    guess, low, high = histogram_quantile(0.99, fast + slow)
    return Result(
        p99_all_ms=1000 * p_all,
        p99_mean_ms=1000 * (p_fast + p_slow) / 2,
        p99_fast_ms=1000 * p_fast,
        p99_slow_ms=1000 * p_slow,
        p99_histogram_ms=1000 * guess,
        bucket_low_ms=1000 * low,
        bucket_high_ms=1000 * high,
    )


def _p99(values: list[float]) -> float:
    found = percentiles(values)
    assert found is not None
    return found.p99


def histogram_quantile(share: float, values: list[float]) -> tuple[float, float, float]:
    """(estimate, lower and upper edge of its bucket), in seconds: linear inside the bucket, like Prometheus."""
    rank, below, low = share * len(values), 0, 0.0
    for high in TTFT_BUCKETS:
        inside = sum(low < value <= high for value in values)
        if inside and below + inside >= rank:
            return low + (high - low) * (rank - below) / inside, low, high
        below, low = below + inside, high
    return TTFT_BUCKETS[-1], TTFT_BUCKETS[-1], math.inf

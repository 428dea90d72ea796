"""Lab metrics-exporter: counters, gauges and histograms as the text that Prometheus reads, and a quantile from buckets.

The seam is the registry of the engine's metrics (engine/server/metrics.py, GET /metrics; the names are vLLM's, see
v1/metrics/loggers.py there). Format 0.0.4, one block per metric, in order of declaration:

    # HELP vllm:e2e_seconds Latency of a request.
    # TYPE vllm:e2e_seconds histogram
    vllm:e2e_seconds_bucket{model_name="shop",le="0.5"} 3.0        values of at most 0.5: each bucket
    vllm:e2e_seconds_bucket{model_name="shop",le="1.0"} 5.0        includes the smaller ones
    vllm:e2e_seconds_bucket{model_name="shop",le="+Inf"} 6.0
    vllm:e2e_seconds_sum{model_name="shop"} 7.25
    vllm:e2e_seconds_count{model_name="shop"} 6.0

Source: prometheus.io/docs/instrumenting/exposition_formats; PromQL's histogram_quantile (promql/quantile.go).
"""

from __future__ import annotations

from collections.abc import Sequence


class Registry:
    """All metrics of a process. A series is a metric with one choice of label values."""

    def __init__(self) -> None:
        """Hold no metric."""
        raise NotImplementedError("write Registry")

    def declare(
        self, kind: str, name: str, help: str, labels: Sequence[str] = (), buckets: Sequence[float] = ()
    ) -> None:
        """Add a metric. Without labels its one series exists at once, at 0.

        kind: "counter", "gauge" or "histogram". buckets: upper bounds of a histogram, without +Inf. A counter is
        declared without the suffix _total; text() appends it to the name, in HELP and TYPE too.

        Raises ValueError for another kind, a name that is declared already, a counter whose name ends in _total, a name
        other than [a-zA-Z_:][a-zA-Z0-9_:]*, a label other than [a-zA-Z_][a-zA-Z0-9_]*, a label that begins with __ or
        comes twice, the label le of a histogram, and buckets of a histogram that are empty, not finite or not strictly
        increasing.
        """
        raise NotImplementedError("write declare")

    def touch(self, name: str, *values: str) -> None:
        """Let a series exist, at 0 if it is new. values: one per label, in the order of the declaration.

        Raises ValueError, as all methods below, for a name that is not declared and another number of values. A call
        that raises changes nothing.
        """
        raise NotImplementedError("write touch")

    def add(self, name: str, amount: float, *values: str) -> None:
        """Add to a counter or a gauge. Raises ValueError for a histogram, and for a negative amount of a counter."""
        raise NotImplementedError("write add")

    def assign(self, name: str, value: float, *values: str) -> None:
        """Set a gauge. Raises ValueError for other kinds."""
        raise NotImplementedError("write assign")

    def observe(self, name: str, value: float, *values: str) -> None:
        """Count a value in a histogram; one on a bound belongs to that bucket. Raises ValueError for other kinds."""
        raise NotImplementedError("write observe")

    def text(self) -> str:
        """Return all metrics in the format above; each line ends with a newline. Series are in order of first use.

        A metric without a series still has HELP and TYPE. Numbers are written as repr(float(x)), and +Inf, -Inf, NaN.
        In HELP a backslash becomes \\\\ and a line feed \\n; in label values a double quote becomes \\" as well. A
        series without labels has no braces.
        """
        raise NotImplementedError("write text")


def histogram_quantile(q: float, buckets: Sequence[tuple[float, float]]) -> float:
    """Return the q-quantile of histograms as PromQL estimates it.

    buckets: (upper bound, cumulative count) in any order, of one or several histograms; counts of equal bounds are
    added, as by `sum by (le)`. After that a count below one of a smaller bound is raised to it. Counts are >= 0,
    and may be fractions, even below 1: those of `rate()` are.

    q < 0 gives -inf, q > 1 inf. NaN without a bucket of bound inf, without a second bucket, or if all counts are 0.
    The rank is q times the count of the bucket inf. It falls into the first bucket, in order of bounds, whose count is
    above 0 and at least the rank. In the bucket inf the answer is the largest finite bound. Otherwise interpolate
    linearly between the next smaller bound and the bucket's own, by the rank's place among the counts of both; the
    smallest bucket begins at 0 with count 0, and if its bound is not positive, the answer is that bound.
    """
    raise NotImplementedError("write histogram_quantile")

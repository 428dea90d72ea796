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

import math
import re
from collections.abc import Sequence
from typing import Any

KINDS = ("counter", "gauge", "histogram")
QUOTE, ESCAPED_QUOTE = '"', r"\""


class Registry:
    """All metrics of a process. A series is a metric with one choice of label values."""

    def __init__(self) -> None:
        """Hold no metric."""
        self.metrics: dict[str, dict[str, Any]] = {}

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
        is_named = re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", name) and name not in self.metrics
        if not is_named or kind not in KINDS or (kind == "counter" and name.endswith("_total")):
            raise ValueError(f"{kind} {name!r} cannot be declared")
        wrong = [each for each in labels if not re.fullmatch(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*", each)]
        if wrong or len(set(labels)) < len(labels) or (kind == "histogram" and "le" in labels):
            raise ValueError(f"labels {labels} of {name!r} are wrong")
        bounds = [float(each) for each in buckets]
        if kind == "histogram" and (
            not bounds or not all(map(math.isfinite, bounds)) or bounds != sorted(set(bounds))
        ):
            raise ValueError(f"buckets of {name!r} must increase")
        self.metrics[name] = {
            "kind": kind,
            "help": help,
            "labels": list(labels),
            "bounds": bounds,
            "series": {},
        }
        if not labels:
            self.touch(name)

    def touch(self, name: str, *values: str) -> None:
        """Let a series exist, at 0 if it is new. values: one per label, in the order of the declaration.

        Raises ValueError, as all methods below, for a name that is not declared and another number of values. A call
        that raises changes nothing.
        """
        self._series(name, KINDS, values)

    def add(self, name: str, amount: float, *values: str) -> None:
        """Add to a counter or a gauge. Raises ValueError for a histogram, and for a negative amount of a counter."""
        if amount < 0 and name in self.metrics and self.metrics[name]["kind"] == "counter":
            raise ValueError(f"counter {name!r} cannot fall by {amount}")
        self._series(name, ("counter", "gauge"), values)["sum"] += amount

    def assign(self, name: str, value: float, *values: str) -> None:
        """Set a gauge. Raises ValueError for other kinds."""
        self._series(name, ("gauge",), values)["sum"] = value

    def observe(self, name: str, value: float, *values: str) -> None:
        """Count a value in a histogram; one on a bound belongs to that bucket. Raises ValueError for other kinds."""
        series = self._series(name, ("histogram",), values)
        bounds = self.metrics[name]["bounds"]
        place = next((at for at, bound in enumerate(bounds) if value <= bound), len(bounds))
        series["counts"][place] += 1
        series["sum"] += value

    def _series(self, name: str, kinds: Sequence[str], values: tuple[str, ...]) -> dict[str, Any]:
        metric = self.metrics.get(name)
        if metric is None or metric["kind"] not in kinds or len(values) != len(metric["labels"]):
            raise ValueError(f"{name!r} does not take this call with {len(values)} label values")
        new = {"sum": 0.0, "counts": [0] * (len(metric["bounds"]) + 1)}
        series: dict[str, Any] = metric["series"].setdefault(values, new)
        return series

    def text(self) -> str:
        """Return all metrics in the format above; each line ends with a newline. Series are in order of first use.

        A metric without a series still has HELP and TYPE. Numbers are written as repr(float(x)), and +Inf, -Inf, NaN.
        In HELP a backslash becomes \\\\ and a line feed \\n; in label values a double quote becomes \\" as well. A
        series without labels has no braces.
        """
        lines = []
        for name, metric in self.metrics.items():
            kind = metric["kind"]
            shown = name + "_total" if kind == "counter" else name
            lines += [f"# HELP {shown} {escaped(metric['help'])}", f"# TYPE {shown} {kind}"]
            for values, series in metric["series"].items():
                labels = list(zip(metric["labels"], values, strict=True))
                if kind != "histogram":
                    lines.append(sample(shown, labels, series["sum"]))
                    continue
                count = 0
                for bound, more in zip([*metric["bounds"], math.inf], series["counts"], strict=True):
                    count += more
                    lines.append(sample(f"{name}_bucket", [*labels, ("le", number(bound))], count))
                lines += [
                    sample(f"{name}_sum", labels, series["sum"]),
                    sample(f"{name}_count", labels, count),
                ]
        return "".join(line + "\n" for line in lines)


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def number(value: float) -> str:
    if math.isfinite(value):
        return repr(float(value))
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def sample(name: str, labels: Sequence[tuple[str, str]], value: float) -> str:
    quoted = [f'{label}="{escaped(given).replace(QUOTE, ESCAPED_QUOTE)}"' for label, given in labels]
    return f"{name}{{{','.join(quoted)}}} {number(value)}" if labels else f"{name} {number(value)}"


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
    if q < 0 or q > 1:
        return math.copysign(math.inf, q)
    summed: dict[float, float] = {}
    for bound, count in buckets:
        summed[bound] = summed.get(bound, 0.0) + count
    bounds = sorted(summed)
    counts: list[float] = []
    for bound in bounds:
        counts.append(max(summed[bound], counts[-1] if counts else 0.0))
    if len(bounds) < 2 or bounds[-1] != math.inf or counts[-1] == 0:
        return math.nan
    rank = q * counts[-1]
    place = next(at for at, count in enumerate(counts) if count > 0 and count >= rank)
    if place == len(bounds) - 1:
        return bounds[-2]
    if place == 0 and bounds[0] <= 0:
        return bounds[0]
    low, below = (bounds[place - 1], counts[place - 1]) if place else (0.0, 0.0)
    return low + (bounds[place] - low) * (rank - below) / (counts[place] - below)

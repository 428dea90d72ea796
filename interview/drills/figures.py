"""The figures of a run: names, units, and the look that shows each. measure.py fills them.

A figure has a direction against the healthy twin's: 1 (higher), -1 (lower), 0 (about the same). It takes a factor and
a difference, so that noise of the machine gives no direction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

Figures = dict[str, float]
Signature = dict[str, int]


@dataclass(frozen=True)
class Figure:
    look: str
    """The look that shows it."""
    unit: str
    least: float
    """Smallest difference that counts."""
    factor: float
    """Smallest ratio that counts."""
    says: str
    """Its name for a reader; the key is the name to type."""


@dataclass(frozen=True)
class Look:
    cost: int
    shows: str


LOOKS = {
    "latency": Look(1, "TTFT and ITL as the server counts them (/metrics), estimated from buckets"),
    "queue": Look(1, "running and waiting requests, KV cache, preemptions (/metrics)"),
    "cache": Look(1, "prefix cache, recomputed tokens (/metrics)"),
    "ends": Look(1, "finish reasons, rejections, lengths of answers (/metrics)"),
    "speculation": Look(1, "drafted and accepted tokens, LoRA loads (/metrics, step log)"),
    "clients": Look(1, "TTFT and ITL as the clients see them, errors, attempts"),
    "log": Look(1, "the last lines that the server wrote"),
    "top": Look(2, "levels over the time of the run, as prep top shows them"),
    "steps": Look(2, "duration and tokens of each step"),
    "requests": Look(2, "the request log: queue, prefix hits, preemptions of each request"),
    "replicas": Look(2, "how requests and hits spread over the servers behind the gateway"),
    "quality": Look(2, "right answers to questions with known answers, the shorter and longer half"),
    "config": Look(3, "the options that the server was started with"),
}
"""Look -> its cost. Cheap ones first is the habit that a drill trains."""

FIGURES = {
    "server_ttft_p50": Figure("latency", "ms", 50, 3, "TTFT in the server, median"),
    "server_ttft_p99": Figure("latency", "ms", 150, 3, "TTFT in the server, p99"),
    "server_itl_p50": Figure("latency", "ms", 15, 2, "ITL in the server, median"),
    "server_itl_p99": Figure("latency", "ms", 60, 3, "ITL in the server, p99"),
    "waiting_mean": Figure("queue", "requests", 3, 3, "waiting requests, mean"),
    "running_mean": Figure("queue", "requests", 4, 1.8, "running requests, mean"),
    "kv_mean": Figure("queue", "share", 0.15, 1.6, "KV cache in use, mean"),
    "preemptions": Figure("queue", "", 5, 2, "preemptions"),
    "deferred_mean": Figure("queue", "requests", 1, 2, "requests that wait for KV, a grammar or a prefix, mean"),
    "hit_rate": Figure("cache", "share", 0.2, 1.5, "prefix cache hit rate"),
    "prefix_queries": Figure("cache", "tokens", 500, 2, "prompt tokens looked up in the prefix cache"),
    "recomputed_tokens": Figure("cache", "tokens", 300, 2, "prompt tokens computed a second time"),
    "ends_length_share": Figure("ends", "share", 0.3, 1.5, "answers that end with finish_reason length"),
    "ends_abort": Figure("ends", "", 4, 2, "answers that end with finish_reason abort"),
    "rejections": Figure("ends", "", 3, 2, "requests refused with status 429"),
    "refused": Figure("ends", "", 3, 2, "requests refused with status 400"),
    "answer_tokens": Figure("ends", "tokens", 8, 1.5, "mean length of an answer"),
    "acceptance": Figure("speculation", "share", 0.2, 1.5, "accepted share of the drafted tokens"),
    "lora_loads": Figure("speculation", "", 5, 2, "LoRA adapters loaded"),
    "client_ttft_p50": Figure("clients", "ms", 50, 3, "TTFT at the clients, median"),
    "client_ttft_p99": Figure("clients", "ms", 150, 3, "TTFT at the clients, p99"),
    "client_gap_p50": Figure("clients", "ms", 15, 2, "pause between two chunks, median"),
    "client_gap_p99": Figure("clients", "ms", 60, 3, "pause between two chunks, p99"),
    "client_extra_ms": Figure("clients", "ms", 40, 3, "median TTFT of clients less that of the server"),
    "unanswered": Figure("clients", "", 3, 2, "requests without an answer when the run ended"),
    "failed": Figure("clients", "", 3, 2, "requests that failed"),
    "timeouts": Figure("clients", "", 3, 2, "requests ended with status 408"),
    "attempts": Figure("clients", "", 0.3, 1.3, "mean attempts per request"),
    "step_ms_p50": Figure("steps", "ms", 8, 1.8, "duration of a step, median"),
    "step_ms_long": Figure("steps", "ms", 60, 2.5, "fourth longest step"),
    "step_ms_early": Figure("steps", "ms", 150, 3, "longest of the first 10 steps"),
    "step_ms_per_row": Figure("steps", "ms", 8, 2.5, "step without prompts, per sequence, median"),
    "step_jitter": Figure("steps", "ratio", 2.0, 2, "p95 over median of steps with similar work"),
    "tokens_per_step": Figure("steps", "tokens", 8, 1.6, "tokens per step, mean"),
    "prefill_max": Figure("steps", "tokens", 100, 1.8, "most prompt tokens in one step"),
    "prefill_median": Figure("steps", "tokens", 16, 2, "median prompt tokens of the steps that have some"),
    "empty_steps": Figure("steps", "", 20, 3, "steps that computed no token while requests waited"),
    "kv_idle": Figure("steps", "share", 0.1, 2, "KV cache in use when no request runs"),
    "queue_ms_p50": Figure("requests", "ms", 50, 3, "time in the queue, median"),
    "queue_ms_p99": Figure("requests", "ms", 150, 3, "time in the queue, p99"),
    "prompt_tokens_p50": Figure("requests", "tokens", 20, 1.3, "median length of a prompt"),
    "clock_skew_ms": Figure("requests", "ms", 200, 3, "log's arrival less the client's sending time"),
    "replica_imbalance": Figure("replicas", "ratio", 0.5, 1.4, "requests of the busiest server over the mean"),
    "replica_step_ratio": Figure("replicas", "ratio", 0.5, 1.4, "median step of the slowest server over the fastest"),
    "right_short": Figure("quality", "share", 0.25, 1.4, "right answers to the shorter half"),
    "right_long": Figure("quality", "share", 0.25, 1.4, "right answers to the longer half"),
    "tenant_share": Figure("clients", "share", 0.2, 1.4, "the largest tenant's share of the requests"),
    "foreign_hits": Figure("requests", "", 3, 2, "requests that hit a prefix of another tenant"),
    "rank_gap_ms": Figure("log", "ms", 8, 3, "own work of the slowest rank less the fastest"),
    "replica_spread": Figure("replicas", "servers", 0.5, 1.4, "servers that saw a prefix, mean"),
}  # fmt: skip
"""Every figure of a run. A figure that a run cannot have, such as the acceptance without drafts, is 0."""


def direction(name: str, faulty: float, healthy: float) -> int:
    """Return 1, -1 or 0: the figure is clearly higher, clearly lower, or neither."""
    figure = FIGURES[name]
    if not (math.isfinite(faulty) and math.isfinite(healthy)) or abs(faulty - healthy) < figure.least:
        return 0
    low, high = sorted((abs(faulty), abs(healthy)))
    if high < figure.factor * low:
        return 0
    return 1 if faulty > healthy else -1


def signature(faulty: Figures, healthy: Figures) -> Signature:
    """Return the directions that are not 0."""
    directions = {name: direction(name, faulty[name], healthy[name]) for name in FIGURES}
    return {name: sign for name, sign in directions.items() if sign}


def shown(name: str, value: float) -> str:
    """Return a figure with its unit; a count without decimals."""
    unit = FIGURES[name].unit
    is_whole = abs(value) >= 20 or float(value).is_integer()
    digits = 2 if unit in ("share", "ratio", "servers") else 0 if is_whole else 1
    return f"{value:,.{digits}f}{' ' + unit if unit else ''}"

"""Figures over steps, reduced to the columns of a screen without losing peaks; and the meanings of a run's counters.

A screen has some 1,000 columns, a run up to 50,000 steps. Each column keeps the least and the greatest value of its
steps: a spike of one step stays visible, which a mean would hide. Steps that share a column are named by it, so that a
click can land on them. The counters' meanings are the docstrings of `StepStats` in engine/core/stats.py.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.debugger.trace_index import RequestSummary, TraceIndex
from engine.core import stats

MAX_COLUMNS = 1000
EVENTS = {"preempt": "preempted", "abort": "aborted", "finish": "finished"}
"""Kinds of events marked on the charts, as words; `evict` and `hit` have separate charts."""


class Columns(NamedTuple):
    """A reduced series: column k covers steps first[k] up to first[k + 1]."""

    first: NDArray[np.int64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


class Metric(NamedTuple):
    """One small chart."""

    name: str
    title: str
    unit: str
    values: NDArray[np.float64]
    """One value per step; nan without one."""
    limit: float | None
    """The maximum, drawn as a line."""
    vllm: str
    """Name of the Prometheus metric with the same figure in vLLM; empty if there is none."""


def thin(values: NDArray[np.generic], first: int = 0, columns: int = MAX_COLUMNS) -> Columns:
    """At most `columns` columns of equal width; `first` is the step of values[0]. A column without values is nan."""
    if not len(values):
        return Columns(np.empty(0, np.int64), np.empty(0), np.empty(0))
    width = -(-len(values) // columns)
    starts = np.arange(0, len(values), width)
    numbers = np.asarray(values, np.float64)
    low = np.fmin.reduceat(numbers, starts)
    high = np.fmax.reduceat(numbers, starts)
    return Columns(starts + first, low, high)


def metrics(index: TraceIndex) -> list[Metric]:
    """The six charts of a run."""
    series = index.series
    scheduler = index.header.get("config", {}).get("scheduler", {})
    return [
        Metric(
            "running", "Running", "requests", _floats(series.running), scheduler.get("max_num_seqs"),
            "vllm:num_requests_running",
        ),
        Metric("waiting", "Waiting", "requests", _floats(series.waiting), None, "vllm:num_requests_waiting"),
        Metric(
            "free_blocks", "Free blocks", "blocks, cached content included", _floats(series.free_blocks),
            index.num_blocks - 1, "vllm:kv_cache_usage_perc (its complement, 0-1)",
        ),
        Metric(
            "tokens", "Tokens per step", "tokens, of the budget", _floats(series.num_tokens),
            scheduler.get("max_num_batched_tokens"), "vllm:iteration_tokens_total (histogram)",
        ),
        Metric("step_ms", "Step time", "ms", series.duration_s * 1e3, None, ""),
        Metric(
            "hit_rate", "Prefix hit rate", "% of prompt tokens so far", hit_rate(index.requests, index.num_steps),
            100.0, "vllm:prefix_cache_hits / vllm:prefix_cache_queries",
        ),
    ]  # fmt: skip


def hit_rate(requests: Sequence[RequestSummary], num_steps: int) -> NDArray[np.float64]:
    """Share of the prompt tokens admitted up to each step that were found in the prefix cache, in %; nan before the
    first.

    Only first admissions count, not the tokens that a resumed request finds."""
    hits, asked = np.zeros(num_steps), np.zeros(num_steps)
    for request in requests:
        if request.admitted is not None and request.admitted < num_steps:
            hits[request.admitted] += request.num_cached_tokens
            asked[request.admitted] += request.num_prompt_tokens
    total = np.cumsum(asked)
    rate = np.full(num_steps, np.nan)
    np.divide(np.cumsum(hits) * 100.0, total, out=rate, where=total > 0)
    return rate


def _floats(values: NDArray[np.generic]) -> NDArray[np.float64]:
    return values.astype(np.float64)


VLLM_NAMES = {
    "num_preempted": "vllm:num_preemptions",
    "num_drafts": "vllm:spec_decode_num_drafts",
    "num_draft_tokens": "vllm:spec_decode_num_draft_tokens",
    "num_accepted_tokens": "vllm:spec_decode_num_accepted_tokens",
    "external_prefix_cache_queries": "vllm:external_prefix_cache_queries",
    "external_prefix_cache_hits": "vllm:external_prefix_cache_hits",
    "encoder_cache_queries": "vllm:mm_cache_queries (of another cache: the processor's)",
    "encoder_cache_hits": "vllm:mm_cache_hits (of another cache: the processor's)",
}
"""vLLM's counters have the same meaning unless noted; prometheus_client adds `_total`."""


class CounterRow(NamedTuple):
    counter: str
    total: int
    meaning: str
    vllm: str
    """Empty: vLLM has no such metric."""


def counter_rows(totals: dict[str, int]) -> list[CounterRow]:
    return [
        CounterRow(name, total, meanings().get(name, ""), VLLM_NAMES.get(name, ""))
        for name, total in totals.items()
    ]


@cache
def meanings() -> dict[str, str]:
    """Counter -> the docstring below its field; a docstring below several fields applies to all of them."""
    body = ast.parse(inspect.getsource(stats.StepStats)).body[0].body  # type: ignore[attr-defined]
    texts: dict[str, str] = {}
    undescribed: list[str] = []
    for statement in body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            undescribed.append(statement.target.id)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and undescribed:
            text = " ".join(str(statement.value.value).split())
            texts[undescribed[-1]] = text
            undescribed = []
    return texts

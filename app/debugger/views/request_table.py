"""The requests of a run as rows: arrival, latencies, preemptions.

Times exist twice. In steps: always. In milliseconds: only where the run had a clock; a scripted run counts
steps and nothing else (`has_clock`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.debugger.trace_index import RequestSummary, Series, TraceIndex
from app.debugger.views.phases import PhaseSpan, phases, steps_in
from common.percentile import percentile_or_none


@dataclass(frozen=True)
class RequestRow:
    """One request. None: it did not happen, or the run has no clock."""

    number: int
    request: str
    arrived: int
    """The step before which it arrived."""
    queue_steps: int
    """Steps before its first admission."""
    ttft_steps: int | None
    """Steps from arrival to first token, including the step of the token; at least 1."""
    ttft_ms: float | None
    itl_p50_steps: float | None
    """Steps between two tokens, median and 99th percentile; 1 is uninterrupted decoding."""
    itl_p99_steps: float | None
    itl_p50_ms: float | None
    itl_p99_ms: float | None
    prompt_tokens: int
    prefix_hit_tokens: int
    """Found in the prefix cache at the first admission."""
    output_tokens: int
    preemptions: int
    finish: str
    """Finish reason, or the state at the end of the trace: waiting, running, preempted."""
    priority: int
    lora: str | None


def has_clock(series: Series) -> bool:
    """Whether steps took time. In a scripted run no model runs, and every step takes 0 s."""
    return bool(np.any(series.duration_s))


def request_rows(index: TraceIndex, lives: Sequence[list[PhaseSpan]] | None = None) -> list[RequestRow]:
    """The rows in order of arrival. `lives`: the phases per request, if already computed."""
    series = index.series
    ends = series.time_s + series.duration_s if has_clock(series) else None
    requests = index.requests
    if lives is None:
        lives = [phases(index, request) for request in requests]
    return [_row(index, request, spans, ends) for request, spans in zip(requests, lives, strict=True)]


def _row(
    index: TraceIndex, request: RequestSummary, spans: list[PhaseSpan], ends: NDArray[np.float64] | None
) -> RequestRow:
    tokens = index.token_steps(request.number)
    steps = np.sort(np.diff(tokens))
    milliseconds = np.sort(np.diff(ends[tokens])) * 1e3 if ends is not None and len(tokens) else np.empty(0)
    ttft_s = request.ttft_s if ends is not None else None
    return RequestRow(
        number=request.number,
        request=request.request_id,
        arrived=request.added,
        queue_steps=steps_in(spans, "waiting"),
        ttft_steps=None if request.first_token is None else request.first_token - request.added + 1,
        ttft_ms=None if ttft_s is None else ttft_s * 1e3,
        itl_p50_steps=percentile_or_none(steps, 50),
        itl_p99_steps=percentile_or_none(steps, 99),
        itl_p50_ms=percentile_or_none(milliseconds, 50),
        itl_p99_ms=percentile_or_none(milliseconds, 99),
        prompt_tokens=request.num_prompt_tokens,
        prefix_hit_tokens=request.num_cached_tokens,
        output_tokens=request.num_output_tokens,
        preemptions=request.num_preemptions,
        finish=request.finish_reason or _unfinished(spans),
        priority=request.priority,
        lora=request.lora,
    )


def _unfinished(spans: Sequence[PhaseSpan]) -> str:
    if not spans:
        return "arrived"
    return {"waiting": "waiting", "preempted": "preempted"}.get(spans[-1].phase, "running")

"""Requests as rows (arrival, latencies, preemptions), and details of one: its tokens, blocks, and preemptions.

Times exist twice. In steps: always. In milliseconds: only where the run had a clock; a scripted run counts steps and
nothing else (`has_clock`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.debugger.trace_index import RequestSummary, Series, TraceIndex
from app.debugger.views.phases import PhaseSpan, phases, steps_in
from engine.trace.blocks import NULL_BLOCK
from engine.trace.history import RequestHistory
from engine.trace.protocol import Trace
from engine.trace.records import StepSeries
from prep_common.percentile import percentile_or_none


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
    last = spans[-1].phase if spans else "arrived"
    unfinished = "running" if last in ("prefill", "decode") else last
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
        finish=request.finish_reason or unfinished,
        priority=request.priority,
        lora=request.lora,
    )


class OutputToken(NamedTuple):
    """A token of the output and its latency."""

    position: int
    """0 is the first token of the output."""
    token_id: int
    step: int
    gap_steps: int | None
    """Steps since the previous token; 0 if the same step produced both; None for the first token."""
    gap_ms: float | None
    """Milliseconds between the ends of the steps; None without a clock."""


def output_tokens(reader: Trace, request: RequestHistory, has_clock: bool) -> list[OutputToken]:
    series = reader.series
    tokens: list[OutputToken] = []
    for step, num_outputs in zip(request.row_steps, request.row_outputs, strict=True):
        for token_id in request.tokens[len(tokens) : num_outputs]:
            gap_steps = gap_ms = None
            if tokens:
                before = tokens[-1].step
                gap_steps = step - before
                if has_clock and step < len(series.time_s):
                    gap_ms = 1e3 * (_end(series, step) - _end(series, before))
            tokens.append(OutputToken(len(tokens), token_id, step, gap_steps, gap_ms))
    return tokens


def _end(series: StepSeries, step: int) -> float:
    return series.time_s[step] + series.duration_s[step]


@dataclass(frozen=True)
class Preemption:
    """One preemption of a request."""

    step: int
    blocks_given_back: int
    tokens_lost: int
    """Tokens whose KV existed when it was preempted."""
    resumed: int | None
    """Step of the resumption; None if it did not resume."""
    tokens_found: int | None
    """Tokens found at the resumption, in the prefix cache or copied from the host."""
    next_token: int | None
    """The step of its next token: until then its client gets nothing."""

    @property
    def tokens_computed_again(self) -> int | None:
        """Recomputed tokens; known after the resumption."""
        return None if self.tokens_found is None else max(0, self.tokens_lost - self.tokens_found)


def preemptions(request: RequestHistory) -> list[Preemption]:
    """The preemptions of a request, in order. A stay ends with a preemption or with the request."""
    costs = []
    for position, stay in enumerate(request.stays):
        if stay.left not in request.preempted:
            continue
        after = request.stays[position + 1] if position + 1 < len(request.stays) else None
        row = request.row_before(stay.left - 1)
        ran = row >= 0 and request.row_steps[row] >= stay.admitted
        costs.append(
            Preemption(
                step=stay.left,
                blocks_given_back=sum(block != NULL_BLOCK for block in stay.table_at(stay.left)),
                tokens_lost=request.row_computed[row] if ran else stay.start,
                resumed=after.admitted if after else None,
                tokens_found=after.start if after else None,
                next_token=_next_token(request, row),
            )
        )
    return costs


def _next_token(request: RequestHistory, row: int) -> int | None:
    """The step of the first token after a row."""
    had = request.row_outputs[row] if row >= 0 else 0
    rows = zip(request.row_steps[row + 1 :], request.row_outputs[row + 1 :], strict=True)
    return next((step for step, outputs in rows if outputs > had), None)


class TableEntry(NamedTuple):
    """One entry of a block table."""

    index: int  # type: ignore[assignment]
    block: int
    """0: the null block, behind the sliding window."""
    ref: int
    others: list[str]
    """Other running requests that hold it."""
    is_sealed: bool
    """Whether it is published, so that a prefix hit can reuse it."""
    came: int
    """The step in which it was added to the table."""


def block_table(reader: Trace, request: RequestHistory, step: int) -> list[TableEntry]:
    """A request's blocks after a step, in table order; none while it waits."""
    stay = request.stay_at(step)
    if stay is None or not request.lives_at(step):
        return []
    state = reader.state_at(step)
    table = stay.table_at(step)
    return [
        TableEntry(
            index,
            block,
            state.blocks.ref[block],
            [name for name in state.owners.get(block, ()) if block and name != request.request_id],
            state.blocks.hash[block] != 0,
            stay.block_steps[index],
        )
        for index, block in enumerate(table)
    ]

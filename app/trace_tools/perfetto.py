"""A trace as Chrome trace events, for https://ui.perfetto.dev or chrome://tracing.

    process "engine"      thread "steps"     a slice per step
                          counters           running, waiting, free blocks, tokens per step
    process "requests"    thread per request waiting | prefill | decode | preempted | prefill | decode

Source: "Trace Event Format", the Chromium project's document; times are microseconds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from engine.trace.history import RequestHistory, Stay
from engine.trace.protocol import Trace

ENGINE = 1
REQUESTS = 2
STEPS_THREAD = 1

_COLOURS = {  # names of the format's own palette
    "waiting": "grey",
    "prefill": "thread_state_runnable",
    "decode": "thread_state_running",
    "preempted": "terrible",
}

TraceEvent = dict[str, Any]


def export_perfetto(reader: Trace, path: str | os.PathLike[str]) -> int:
    """Write the trace to a JSON file and return the number of events."""
    events = list(trace_events(reader))
    document = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"model": str(reader.header.get("model")), "machine": str(reader.header.get("machine"))},
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(document, file, separators=(",", ":"))
    return len(events)


def trace_events(reader: Trace) -> Iterator[TraceEvent]:
    yield _name("process_name", ENGINE, 0, "engine")
    yield _name("thread_name", ENGINE, STEPS_THREAD, "steps")
    yield _name("process_name", REQUESTS, 0, "requests")
    for request in reader.requests:
        yield _name("thread_name", REQUESTS, _thread(request), request.request_id)
        yield from _slices(reader, request)
    yield from _steps(reader)


def _steps(reader: Trace) -> Iterator[TraceEvent]:
    series = reader.series
    for step in range(reader.num_steps):
        begin, end = _step_span(reader, step)
        tokens = series.num_tokens[step]
        queues = {"running": series.running[step], "waiting": series.waiting[step]}
        args = {"step": step, "tokens": tokens, **queues}
        yield _slice(ENGINE, STEPS_THREAD, f"step {step}", begin, end, args)
        counters = {"tokens per step": tokens, **queues, "free blocks": series.free_blocks[step]}
        for name, value in counters.items():
            event = {"ph": "C", "pid": ENGINE, "tid": 0, "name": name, "ts": _microseconds(begin)}
            yield {**event, "args": {name: value}}


def _slices(reader: Trace, request: RequestHistory) -> Iterator[TraceEvent]:
    """The slices of a request from its arrival to its end, without gaps."""
    at, state = request.added_s, "waiting"
    for number, stay in enumerate(request.stays):
        admitted, _ = _step_span(reader, stay.admitted)
        yield _phase(request, state, at, admitted)
        at = max(at, admitted)
        left = _left_at(reader, request, stay)
        prefilled = min(_prefilled_at(reader, request, stay), left)
        yield _phase(request, "prefill", at, prefilled, {"cached tokens": stay.start, "stay": number})
        if left > prefilled:
            yield _phase(request, "decode", prefilled, left)
        at, state = left, "preempted"
        if stay.left in request.preempted:
            event = {"ph": "i", "s": "t", "pid": REQUESTS, "tid": _thread(request), "name": "preempted"}
            yield {**event, "ts": _microseconds(left), "args": {"step": stay.left}}
    ended = reader.duration_s if request.ended_s is None else request.ended_s
    if not request.stays or request.stays[-1].left in request.preempted:
        yield _phase(request, state, at, ended)


def _left_at(reader: Trace, request: RequestHistory, stay: Stay) -> float:
    """The end of a stay: the start of the step that preempted it, the end of its last step, or the end of the run."""
    if stay.left is None:
        return reader.duration_s
    if stay.left in request.preempted and stay.left != request.ended:
        return _step_span(reader, stay.left)[0]
    return reader.duration_s if request.ended_s is None else request.ended_s


def _prefilled_at(reader: Trace, request: RequestHistory, stay: Stay) -> float:
    """The time of the stay's first output; before it, the stay prefills."""
    before = request.num_outputs_at(stay.admitted - 1)
    row = request.row_before(stay.admitted - 1) + 1
    while row < len(request.row_steps) and request.row_outputs[row] == before:
        row += 1
    if row == len(request.row_steps):
        return reader.duration_s
    return _step_span(reader, request.row_steps[row])[1]


def _step_span(reader: Trace, step: int) -> tuple[float, float]:
    if step >= reader.num_steps:
        return reader.duration_s, reader.duration_s
    begin = reader.series.time_s[step]
    return begin, begin + reader.series.duration_s[step]


def _phase(
    request: RequestHistory, name: str, begin: float, end: float, args: dict[str, int] | None = None
) -> TraceEvent:
    event = _slice(REQUESTS, _thread(request), name, begin, end, args or {})
    return {**event, "cname": _COLOURS[name]}


def _slice(
    process: int, thread: int, name: str, begin: float, end: float, args: dict[str, int]
) -> TraceEvent:
    return {
        "ph": "X",
        "pid": process,
        "tid": thread,
        "name": name,
        "ts": _microseconds(begin),
        "dur": max(0.0, round(_microseconds(end) - _microseconds(begin), 3)),
        "args": args,
    }


def _name(kind: str, process: int, thread: int, name: str) -> TraceEvent:
    return {"ph": "M", "pid": process, "tid": thread, "name": kind, "ts": 0, "args": {"name": name}}


def _thread(request: RequestHistory) -> int:
    return request.number + 1


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)

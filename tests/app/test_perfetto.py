"""The Perfetto export obeys the trace-event format and tells each request's life without gaps."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from app.trace_tools.perfetto import ENGINE, REQUESTS, export_perfetto
from engine.core.request import Request
from engine.sampling_params import SamplingParams
from engine.trace.reader import TraceReader
from engine.trace.writer import TraceWriter
from tests.trace.trace_workloads import header, make_scheduler, random_run, sample

SLACK_US = 0.01
"""Times are rounded to nanoseconds."""


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> TraceReader:
    path = tmp_path_factory.mktemp("trace") / "run.itrace"
    for seed in range(100):
        random_run(path, seed, num_requests=30)
        reader = TraceReader(path)
        if all(len(reader.events(kind)) > 2 for kind in ("preempt", "resume", "abort", "hit")):
            return reader
    raise AssertionError("no seed meets all of it")


@pytest.fixture(scope="module")
def events(reader: TraceReader, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    out = tmp_path_factory.mktemp("export") / "run.json"
    count = export_perfetto(reader, out)
    document = json.loads(out.read_text())
    assert document["displayTimeUnit"] == "ms" and len(document["traceEvents"]) == count
    found: list[dict[str, Any]] = document["traceEvents"]
    return found


def test_every_event_has_what_its_phase_demands(events: list[dict[str, Any]]) -> None:
    for event in events:
        assert isinstance(event["name"], str) and isinstance(event["pid"], int)
        assert isinstance(event["tid"], int) and isinstance(event["ts"], (int, float)) and event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0 and isinstance(event["args"], dict)
        elif event["ph"] == "C":
            assert event["args"] and all(isinstance(value, int) for value in event["args"].values())
        elif event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name") and isinstance(event["args"]["name"], str)
        else:
            assert event["ph"] == "i" and event["s"] == "t"


def test_slices_of_a_track_follow_each_other(events: list[dict[str, Any]]) -> None:
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], event["dur"]))
    for slices in tracks.values():
        for (begin, duration), (after, _) in zip(slices, slices[1:], strict=False):
            assert begin + duration <= after + SLACK_US or event["pid"] == ENGINE


def test_a_request_has_a_named_track_from_its_arrival_to_its_end_without_gaps(
    reader: TraceReader, events: list[dict[str, Any]]
) -> None:
    names = {
        e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["pid"] == REQUESTS and e["tid"]
    }
    assert list(names.values()) == [request.request_id for request in reader.requests]
    for request in reader.requests:
        track = [
            e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == (REQUESTS, request.number + 1)
        ]
        assert track[0]["name"] == "waiting"
        assert track[0]["ts"] == pytest.approx(request.added_s * 1e6, abs=SLACK_US)
        for one, other in zip(track, track[1:], strict=False):
            assert one["ts"] + one["dur"] == pytest.approx(other["ts"], abs=SLACK_US)
        assert request.ended_s is not None
        end = track[-1]["ts"] + track[-1]["dur"]
        assert end == pytest.approx(max(request.ended_s * 1e6, track[-1]["ts"]), abs=SLACK_US)
        assert sum(e["name"] == "prefill" for e in track) == len(request.stays)
        assert sum(e["name"] == "preempted" for e in track) == len(request.preempted)


def test_steps_and_counters_are_those_of_the_trace(reader: TraceReader, events: list[dict[str, Any]]) -> None:
    steps = [event for event in events if event["ph"] == "X" and event["pid"] == ENGINE]
    assert [event["args"]["step"] for event in steps] == list(range(reader.num_steps))
    counters = defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            counters[event["name"]].append(event["args"][event["name"]])
    assert counters == {
        "tokens per step": list(reader.series.num_tokens),
        "running": list(reader.series.running),
        "waiting": list(reader.series.waiting),
        "free blocks": list(reader.series.free_blocks),
    }


def test_a_long_prompt_is_prefill_until_its_first_token_then_decode(tmp_path: Path) -> None:
    scheduler = make_scheduler(max_num_batched_tokens=8)
    clock = iter(range(10**6)).__next__
    path = tmp_path / "run.itrace"
    with TraceWriter(path, header(), scheduler, clock=lambda: float(clock())) as tracer:
        request = Request("r0", list(range(20)), SamplingParams(max_tokens=5))
        scheduler.add(request)
        tracer.add(request)
        while scheduler.has_unfinished():
            out = scheduler.schedule()
            result = sample(scheduler, out, random.Random(0))
            result.draft_token_ids.clear()
            tracer.step(out, result, scheduler.update(out, result), 0.5)
    reader = TraceReader(path)
    export_perfetto(reader, tmp_path / "run.json")
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    track = [event for event in events if event["ph"] == "X" and event["pid"] == REQUESTS]
    assert [event["name"] for event in track] == ["waiting", "prefill", "decode"]
    times = reader.series.time_s
    assert [row.phase for step in range(7) for row in reader.step(step).rows] == ["prefill"] * 3 + [
        "decode"
    ] * 4
    assert track[1]["ts"] == times[0] * 1e6
    assert track[2]["ts"] == (times[2] + 0.5) * 1e6

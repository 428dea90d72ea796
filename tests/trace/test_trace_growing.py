"""A trace read line by line, while its engine runs, says at every moment what the whole file says of it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from engine.trace.format import BLOCK_EVENTS, REQUEST_EVENTS, TraceError
from engine.trace.reader import TraceReader
from engine.trace.writer import TraceWriter
from tests.seeds import seeds
from tests.trace.test_trace_file import endless_steps
from tests.trace.test_trace_replay import assert_same
from tests.trace.trace_workloads import header, make_scheduler, random_run


@pytest.mark.parametrize("seed", seeds(8))
def test_a_growing_trace_is_the_engine_after_each_line(tmp_path: Path, seed: int) -> None:
    run = random_run(tmp_path / "run.itrace", seed)
    first, *lines = gzip.decompress(run.path.read_bytes()).splitlines(keepends=True)
    reader, whole = TraceReader.growing("live", first), TraceReader(run.path)
    for line in lines:
        known = reader.num_steps
        reader.feed(line)
        if reader.num_steps == known or reader.num_steps % 7:
            continue
        last = reader.num_steps - 1
        assert_same(reader, last, run.snapshots[last])
        assert_same(reader, last // 2, run.snapshots[last // 2])
        assert reader.step(last) == whole.step(last)
        for kind in (*BLOCK_EVENTS, *REQUEST_EVENTS):
            events = [event for event in whole.events(kind) if event.step <= last]
            assert [event for event in reader.events(kind) if event.step <= last] == events
    assert reader.is_complete and (reader.problems, reader.warnings) == ([], [])
    assert reader.num_steps == whole.num_steps and reader.workload_hash == whole.workload_hash


def test_a_growing_trace_finds_requests_by_name_as_they_come(tmp_path: Path) -> None:
    run = random_run(tmp_path / "run.itrace", seed=3)
    first, *lines = gzip.decompress(run.path.read_bytes()).splitlines()
    reader = TraceReader.growing("live", first)
    with pytest.raises(TraceError, match="live has no request 'r0'"):
        reader.find("r0")
    for line in lines:
        reader.feed(line)
        if json.loads(line)["t"] == "add":
            assert reader.find(json.loads(line)["r"]) is reader.requests[-1]


def test_an_engine_that_dies_while_its_trace_grows_leaves_its_error(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "run.itrace", header(), scheduler := make_scheduler()) as tracer:
        endless_steps(scheduler, tracer, 5)
        scheduler.schedule()
        tracer.error(RuntimeError("out of memory"))
    first, *lines = gzip.decompress((tmp_path / "run.itrace").read_bytes()).splitlines()
    reader = TraceReader.growing("live", first)
    for line in lines:
        reader.feed(line)
    assert reader.num_steps == 5 and reader.error == "RuntimeError: out of memory"
    assert reader.warnings == ["the engine raised RuntimeError: out of memory"]


@pytest.mark.parametrize(
    "line", [b"", b"{", b"[]", b'{"t":"step"}', b'{"t":"step","i":7}', b'{"t":"new","i":0}']
)
def test_a_line_that_no_writer_wrote_is_refused_and_the_steps_before_stay(
    tmp_path: Path, line: bytes
) -> None:
    with TraceWriter(tmp_path / "run.itrace", header(), scheduler := make_scheduler()) as tracer:
        endless_steps(scheduler, tracer, 4)
    first, *lines = gzip.decompress((tmp_path / "run.itrace").read_bytes()).splitlines()
    reader = TraceReader.growing("live", first)
    for good in lines[:-1]:
        reader.feed(good)
    with pytest.raises(TraceError, match=f"live: line {len(lines) + 1} is malformed .*: step 4 is lost"):
        reader.feed(line)
    assert reader.num_steps == 4 and reader.state_at(3).running


def test_a_growing_trace_begins_with_a_header() -> None:
    with pytest.raises(TraceError, match="first line is not a trace header"):
        TraceReader.growing("live", b'{"t":"step"}')

"""Runs of any size: what the columns of a trace say is what its replay says, and what the engine was."""

from __future__ import annotations

import gzip
import json
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.debugger import runs, server, trace_scan, trace_store, trace_text
from app.debugger.column_index import ColumnIndex
from app.debugger.column_reader import ColumnReader, read_columns
from app.debugger.runs import open_trace
from app.debugger.trace_columns import make_columns
from app.debugger.trace_index import TraceIndex, states
from app.debugger.trace_scan import ContradictionError, scan_file
from app.debugger.views.one_block import history
from engine.core.sched_output import Reason
from engine.trace.format import BLOCK_EVENTS, REQUEST_EVENTS, TraceError
from engine.trace.reader import TraceReader
from engine.trace.why import why, why_spans
from engine.trace.writer import TraceWriter
from tests.trace.test_trace_file import OTHER_FILES, endless_steps
from tests.trace.test_trace_replay import assert_same
from tests.trace.trace_workloads import Run, header, make_scheduler, random_run

SEEDS = range(16)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PREP_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def columns_here(path: Path, max_text_bytes: int = 1 << 30) -> ColumnReader:
    """The result of `read_columns`, without a child process."""
    first = trace_text.first_line(path)
    columns = make_columns(scan_file(path, max_text_bytes), json.loads(first))
    return ColumnReader(path, first, columns)


def in_members(path: Path, records_each: int) -> None:
    """Write a trace again, as a writer that flushes more often."""
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    parts = [lines[i : i + records_each] for i in range(0, len(lines), records_each)]
    path.write_bytes(b"".join(gzip.compress(b"".join(part)) for part in parts))


@pytest.fixture(params=SEEDS, scope="module")
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    found = random_run(tmp_path_factory.mktemp("trace") / "run.itrace", request.param)
    in_members(found.path, 1 + request.param % 5 * 10)
    yield found


def test_columns_say_what_the_engine_was_after_every_step(run: Run) -> None:
    reader = columns_here(run.path)
    index = ColumnIndex(reader)
    assert (reader.problems, reader.warnings, reader.is_complete) == ([], [], True)
    assert reader.num_steps == len(run.snapshots)
    for step, engine in enumerate(run.snapshots):
        assert_same(reader, step, engine)
        hashed = np.array([each is not None for each in engine.hashes])
        assert np.array_equal(index.block_states(step), states(np.array(engine.refs), hashed))


def test_columns_answer_every_question_as_a_replay_does(run: Run) -> None:
    whole, reader = TraceReader(run.path), columns_here(run.path)
    assert reader.counter_totals() == whole.counter_totals()
    assert reader.workload_hash == whole.workload_hash
    assert reader.header == whole.header and reader.duration_s == whole.duration_s
    for name in vars(whole.series):
        assert getattr(reader.series, name) == getattr(whole.series, name)
    for reason in Reason:
        assert reader.steps_with(reason) == whole.steps_with(reason)
    for mine, theirs in zip(reader.requests, whole.requests, strict=True):
        assert mine.record["prompt"] == theirs.record["prompt"]
        assert {**mine.record} == theirs.record and mine == theirs
    for kind in (*BLOCK_EVENTS, *REQUEST_EVENTS):
        assert reader.events(kind) == whole.events(kind)
    for step in range(whole.num_steps):
        assert reader.step(step) == whole.step(step)
        assert reader.block_events_at(step) == whole.block_events_at(step)
        mine, theirs = reader.state_at(step), whole.state_at(step)
        assert list(mine.blocks.owner) == list(theirs.blocks.owner) and mine.owners == theirs.owners
        for kind in (*BLOCK_EVENTS, *REQUEST_EVENTS):
            assert reader.next_event(kind, step) == whole.next_event(kind, step)
        block = step % whole.num_blocks
        assert reader.content_before(block, step) == whole.content_before(block, step)
    for block in range(whole.num_blocks):
        assert history(reader, block) == history(whole, block)


def test_columns_give_the_same_reasons_and_tokens(run: Run) -> None:
    whole, reader = TraceReader(run.path), columns_here(run.path)
    rng = random.Random(0)
    for name in {request.request_id for request in whole.requests}:
        assert reader.tokens(name) == whole.tokens(name)
        assert why_spans(reader, name) == why_spans(whole, name)
        step = rng.randrange(whole.num_steps)
        assert why(reader, name, step) == why(whole, name, step)
        assert reader.find(name, step).number == whole.find(name, step).number
    with pytest.raises(TraceError, match="has no request 'r00'"):
        reader.find("r00")


def test_the_index_of_columns_is_the_index_of_a_replay(run: Run) -> None:
    mine, theirs = ColumnIndex(columns_here(run.path)), TraceIndex(TraceReader(run.path))
    assert_same_index(mine, theirs)


def assert_same_index(mine: TraceIndex, theirs: TraceIndex) -> None:
    assert (mine.num_steps, mine.num_blocks, mine.block_size) == (
        theirs.num_steps,
        theirs.num_blocks,
        theirs.block_size,
    )
    for left, right in zip(mine.series, theirs.series, strict=True):
        assert left.dtype == right.dtype and np.array_equal(left, right)
    assert list(mine.requests) == list(theirs.requests)
    for request in theirs.requests:
        assert mine.spans(request.number) == theirs.spans(request.number)
        assert np.array_equal(mine.token_steps(request.number), theirs.token_steps(request.number))
    for kind in (*BLOCK_EVENTS, *REQUEST_EVENTS):
        assert np.array_equal(mine.event_steps(kind), theirs.event_steps(kind))
    for reason in Reason:
        assert np.array_equal(mine.reason_steps(reason), theirs.reason_steps(reason))
    for step in range(-1, theirs.num_steps):
        assert np.array_equal(mine.block_states(step), theirs.block_states(step))
        for kind in ("preempt", "evict", "finish"):
            assert mine.next_event(kind, step) == theirs.next_event(kind, step)
    for window in ((0, theirs.num_steps), (3, 3), (5, 9), (theirs.num_steps // 2, theirs.num_steps)):
        for left, right in zip(mine.block_changes(*window), theirs.block_changes(*window), strict=True):
            assert np.array_equal(left, right)


def test_block_changes_played_one_after_the_other_are_the_states(run: Run) -> None:
    index = TraceIndex(TraceReader(run.path))
    first = index.num_steps // 3
    changes, states_now = index.block_changes(first, index.num_steps), index.block_states(first - 1)
    for step in range(first, index.num_steps):
        entries = slice(changes.offsets[step - first], changes.offsets[step - first + 1])
        blocks = changes.block[entries]
        assert len(set(blocks.tolist())) == len(blocks)
        assert np.all(states_now[blocks] != changes.state[entries]), "only what changed is listed"
        states_now[blocks] = changes.state[entries]
        assert np.array_equal(states_now, index.block_states(step))
        assert np.array_equal(
            states_now,
            states(
                np.array(run.snapshots[step].refs),
                np.array([h is not None for h in run.snapshots[step].hashes]),
            ),
        )


def test_the_index_of_a_growing_run_grows_with_it(tmp_path: Path) -> None:
    run = random_run(tmp_path / "run.itrace", seed=5)
    first, *lines = gzip.decompress(run.path.read_bytes()).splitlines()
    reader = TraceReader.growing("live", first)
    index = TraceIndex(reader)
    for line in lines:
        reader.feed(line)
        steps = reader.num_steps
        assert len(index.series.time_s) == steps and len(index.requests) == len(reader.requests)
        if steps:
            hashed = np.array([each is not None for each in run.snapshots[steps - 1].hashes])
            assert np.array_equal(
                index.block_states(steps - 1), states(np.array(run.snapshots[steps - 1].refs), hashed)
            )
    assert_same_index(index, TraceIndex(TraceReader(run.path)))


def test_two_processes_read_what_one_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with TraceWriter(tmp_path / "run.itrace", header(), scheduler := make_scheduler()) as tracer:
        endless_steps(scheduler, tracer, 1500)
    one = scan_file(tmp_path / "run.itrace", 1 << 30)
    monkeypatch.setattr(trace_scan, "PARALLEL_BYTES", 1000)
    two = scan_file(tmp_path / "run.itrace", 1 << 30)
    assert (len(one), len(two)) == (1, 2)
    with monkeypatch.context() as on_macos:
        on_macos.setattr(sys, "platform", "darwin")
        assert len(scan_file(tmp_path / "run.itrace", 1 << 30)) == 1
    columns = [make_columns(scans, TraceReader(tmp_path / "run.itrace").header) for scans in (one, two)]
    assert columns[0].facts == columns[1].facts
    for name, column in vars(columns[0]).items():
        np.testing.assert_array_equal(column, getattr(columns[1], name), name)


# ---------------------------------------------------------------------- opening


def big_trace(path: Path, steps: int = 1200, close: bool = True) -> bytes:
    tracer = TraceWriter(path, header(), scheduler := make_scheduler())
    endless_steps(scheduler, tracer, steps)
    if close:
        tracer.close()
    else:
        tracer.flush()
        content = path.read_bytes()
        tracer.close()
        path.write_bytes(content)
    return path.read_bytes()


def open_both(path: Path) -> tuple[ColumnReader, TraceReader]:
    reader, index = open_trace(path, replay_bytes=0)
    assert isinstance(reader, ColumnReader) and isinstance(index, ColumnIndex)
    return reader, TraceReader(path)


@pytest.mark.slow
def test_a_big_trace_is_worked_out_once_and_a_damaged_store_is_made_again(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    big_trace(tmp_path / "run.itrace")
    reader, whole = open_both(tmp_path / "run.itrace")
    (stored,) = (home / "cache" / "traces").iterdir()
    written = stored.stat().st_mtime_ns
    assert open_both(tmp_path / "run.itrace")[0].step(700) == whole.step(700)
    assert stored.stat().st_mtime_ns == written
    for damage in (b"", b"hello", stored.read_bytes()[:-9], stored.read_bytes()[:200]):
        stored.unlink()
        stored.write_bytes(damage)
        assert open_both(tmp_path / "run.itrace")[0].step(700) == whole.step(700)
    big_trace(tmp_path / "run.itrace", steps=900)
    assert open_both(tmp_path / "run.itrace")[0].num_steps == 900, "another file under the same name"
    monkeypatch.setenv("PREP_HOME", "/dev/null/nowhere")
    assert open_both(tmp_path / "run.itrace")[0].num_steps == 900, "nothing can be kept"
    assert reader.state_at(1199).running == whole.state_at(1199).running, "what is open stays open"


@pytest.mark.parametrize("share", [0.3, 0.7, 0.999])
def test_a_big_trace_that_is_cut_off_opens_to_its_last_whole_record(tmp_path: Path, share: float) -> None:
    content = big_trace(tmp_path / "run.itrace")
    (tmp_path / "run.itrace").write_bytes(content[: int(len(content) * share)])
    reader, whole = open_both(tmp_path / "run.itrace")
    assert reader.num_steps == whole.num_steps and "truncated" in reader.warnings[0]
    assert (reader.warnings, reader.problems) == (whole.warnings, whole.problems)


def test_a_flipped_byte_ends_a_big_trace_where_it_ends_a_small_one(tmp_path: Path) -> None:
    content = bytearray(big_trace(tmp_path / "run.itrace"))
    content[len(content) * 2 // 3] ^= 0x55
    (tmp_path / "run.itrace").write_bytes(content)
    reader, whole = open_both(tmp_path / "run.itrace")
    assert reader.num_steps == whole.num_steps and "damaged near byte" in reader.warnings[0]
    assert (reader.warnings, reader.problems) == (whole.warnings, whole.problems)


def test_a_big_trace_of_a_killed_engine_says_so(tmp_path: Path) -> None:
    big_trace(tmp_path / "run.itrace", close=False)
    reader, whole = open_both(tmp_path / "run.itrace")
    assert reader.warnings == whole.warnings and "the engine was killed" in reader.warnings[0]


def test_a_big_trace_of_a_dead_engine_says_what_it_raised(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "run.itrace", header(), scheduler := make_scheduler()) as tracer:
        endless_steps(scheduler, tracer, 600)
        scheduler.schedule()
        tracer.error(RuntimeError("out of memory"))
    reader, whole = open_both(tmp_path / "run.itrace")
    assert reader.warnings == whole.warnings == ["the engine raised RuntimeError: out of memory"]
    assert (reader.error, reader.error_steps) == (whole.error, whole.error_steps)


@pytest.mark.parametrize(("content", "complaint"), OTHER_FILES.values(), ids=OTHER_FILES.keys())
def test_another_big_file_is_refused_with_the_same_sentence(
    tmp_path: Path, content: bytes, complaint: str
) -> None:
    path = tmp_path / "other.itrace"
    path.write_bytes(content)
    with pytest.raises(TraceError) as expected:
        TraceReader(path)
    with pytest.raises(TraceError) as found:
        open_trace(path, replay_bytes=0)
    assert str(found.value) == str(expected.value) and complaint in str(found.value)


def test_a_newer_version_and_a_missing_file_are_refused_too(tmp_path: Path) -> None:
    path = tmp_path / "new.itrace"
    path.write_bytes(gzip.compress(b'{"t":"hdr","v":7}\n'))
    with pytest.raises(TraceError, match="trace format 7, and this prep reads up to 1: update prep"):
        open_trace(path, replay_bytes=0)
    with pytest.raises(TraceError, match="cannot read .*it does not exist"):
        open_trace(tmp_path / "none.itrace", replay_bytes=0)


def test_a_very_long_trace_says_which_steps_it_shows(tmp_path: Path) -> None:
    big_trace(tmp_path / "run.itrace", steps=3000)
    whole = TraceReader(tmp_path / "run.itrace")
    reader = read_columns(tmp_path / "run.itrace", max_text_bytes=300_000)
    assert 256 <= reader.num_steps < 2000 and reader.num_steps % 256 == 0
    last = reader.num_steps - 1
    assert f"only the first {reader.num_steps:,} steps (0 to {last:,}) are shown" in reader.warnings[0]
    assert "record a separate run from there" in reader.warnings[0]
    assert reader.step(last) == whole.step(last) and reader.problems == []
    with pytest.raises(TraceError, match=f"no step {last + 1}: it holds 0 to {last}"):
        reader.state_at(last + 1)


# ---------------------------------------------------------------------- records that no writer wrote


Records = list[dict[str, Any]]


def first_step_with(records: Records, kind: str) -> tuple[dict[str, Any], list[Any]]:
    steps = (record for record in records if record["t"] == "step" and record["i"] > 60)
    return next((record, run) for record in steps for run in record.get("ev", ()) if run[0] == kind)


def release_twice(records: Records) -> None:
    record, found = first_step_with(records, "free")
    record["ev"].append(found)


def another_releases(records: Records) -> None:
    _, found = first_step_with(records, "free")
    found[1] += 1


def no_such_block(records: Records) -> None:
    first_step_with(records, "alloc")[1][2][0] = 999


def lost_step(records: Records) -> None:
    records.remove(next(record for record in records if record["t"] == "step" and record["i"] == 100))


def evict_twice(records: Records) -> None:
    record, found = first_step_with(records, "evict")
    record["ev"].append(found)


def lost_admission(records: Records) -> None:
    next(record for record in records if record["t"] == "step" and record["i"] > 60 and "new" in record).pop(
        "new"
    )


def end_twice(records: Records) -> None:
    record = next(
        record for record in records if record["t"] == "step" and record["i"] > 60 and "fin" in record
    )
    record["fin"] *= 2


def no_sense(records: Records) -> None:
    records[100] = {"t": "surprise", "i": 3}


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        release_twice,
        another_releases,
        no_such_block,
        lost_step,
        evict_twice,
        lost_admission,
        end_twice,
        no_sense,
    ],
)
def test_records_that_contradict_each_other_are_left_to_the_replay(
    tmp_path: Path, change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.itrace"
    big_trace(path, steps=300)
    records = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    change(records)
    path.write_bytes(gzip.compress("".join(json.dumps(record) + "\n" for record in records).encode()))
    with pytest.raises(ContradictionError):
        columns_here(path)
    reader, index = open_trace(path, replay_bytes=0)
    whole = TraceReader(path)
    assert whole.problems and not isinstance(reader, ColumnReader)
    assert (reader.num_steps, reader.problems, reader.warnings) == (
        whole.num_steps,
        whole.problems,
        whole.warnings,
    )
    monkeypatch.setattr(runs, "MAX_REPLAY_BYTES", 100)
    with pytest.raises(TraceError, match="contradicts itself: .*`prep trace verify` finds the step"):
        open_trace(path, replay_bytes=0)


def test_requests_whose_place_in_the_queue_changed_stand_where_the_replay_puts_them(tmp_path: Path) -> None:
    path = tmp_path / "run.itrace"
    whole = TraceReader(random_run(path, seed=2).path)
    step = next(step for step in range(whole.num_steps) if len(whole.state_at(step).waiting) > 1)
    first, *_, last = (whole.find(name, step) for name in whole.state_at(step).waiting)
    records = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    record = next(record for record in records if record["t"] == "step" and record["i"] == step)
    record["rekey"] = [[first.number, last.key], [last.number, first.key]]
    path.write_bytes(gzip.compress("".join(json.dumps(record) + "\n" for record in records).encode()))
    before, whole, reader = whole.state_at(step).waiting, TraceReader(path), columns_here(path)
    after = whole.state_at(step).waiting
    assert after != before and sorted(after) == sorted(before)
    for step in range(whole.num_steps):
        assert reader.state_at(step).waiting == whole.state_at(step).waiting
        assert reader.state_at(step).running == whole.state_at(step).running


@pytest.mark.parametrize("name", ["run", "wait", "free", "cached", "kv"])
def test_a_count_that_is_not_what_the_records_give_is_a_problem(tmp_path: Path, name: str) -> None:
    path = tmp_path / "run.itrace"
    big_trace(path, steps=300)
    records = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    next(record for record in records if record["t"] == "step" and record["i"] == 77)[name] += 1
    path.write_bytes(gzip.compress("".join(json.dumps(record) + "\n" for record in records).encode()))
    mine, theirs = columns_here(path).problems, TraceReader(path).problems
    assert (
        mine == [problem for problem in theirs if problem.message.startswith("after step")] and len(mine) == 1
    )


def test_a_trace_that_was_packed_again_in_one_piece_is_refused_when_it_is_too_long_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.itrace"
    content = big_trace(path)
    path.write_bytes(gzip.compress(gzip.decompress(content)))
    assert columns_here(path).step(1000) == TraceReader(path).step(1000)
    monkeypatch.setattr(trace_text, "MAX_MEMBER_BYTES", 100_000)
    with pytest.raises(TraceError, match="recompressed by another tool: open the file that the engine wrote"):
        columns_here(path)


def test_a_trace_that_changes_after_it_was_opened_is_not_mixed_up(tmp_path: Path) -> None:
    path = tmp_path / "run.itrace"
    big_trace(path)
    reader = read_columns(path)
    path.write_bytes(b"hello")
    with pytest.raises(TraceError, match="has changed since it was opened: open the run again"):
        reader.step(900)
    path.unlink()
    with pytest.raises(TraceError, match="can no longer be read: .*Open the run again"):
        reader.step(100)


def test_only_the_newest_stores_are_kept_and_nothing_that_was_left_behind(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = home / "cache" / "traces"
    for number in range(4):
        big_trace(tmp_path / f"{number}.itrace", steps=10)
        read_columns(tmp_path / f"{number}.itrace")
        size = next(folder.iterdir()).stat().st_size
        monkeypatch.setattr(trace_store, "KEPT_BYTES", 2.5 * size)
    for name, age in ((".x.columns.0", 7200), (".y.columns.0", 0)):
        (folder / name).touch()
        os.utime(folder / name, (time.time() - age,) * 2)
    big_trace(tmp_path / "last.itrace", steps=10)
    read_columns(tmp_path / "last.itrace")
    left = {file.name for file in folder.iterdir()}
    assert len(left) == 3 and ".y.columns.0" in left, "two stores, and an unfinished one"


def test_the_server_reads_ahead_what_its_page_will_ask_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "REPLAY_BYTES", 0)
    path = tmp_path / "run.itrace"
    big_trace(path, steps=50)
    server.read_ahead(path)
    monkeypatch.setattr(trace_store, "_make", None)  # nothing is left to be made
    assert read_columns(path).num_steps == 50


@pytest.mark.parametrize("content", [b"no trace", None])
def test_what_cannot_be_read_ahead_is_left_to_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    monkeypatch.setattr(server, "REPLAY_BYTES", 0)
    path = tmp_path / "run.itrace"
    if content is not None:
        path.write_bytes(content)
    server.read_ahead(path)
    with pytest.raises(TraceError):
        open_trace(path, replay_bytes=0)

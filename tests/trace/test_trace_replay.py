"""Pitfall M: replaying a trace gives every block table and queue of the engine, at every step."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from engine.core.request import Request
from engine.core.sched_output import ModelRunnerOutput, Reason, SchedulerOutput, reason_of
from engine.sampling_params import SamplingParams
from engine.trace.reader import TraceReader
from engine.trace.why import why, why_spans
from engine.trace.writer import TraceWriter
from tests.seeds import seeds
from tests.trace.trace_workloads import Snapshot, header, make_scheduler, random_run, sample


def assert_same(reader: TraceReader, step: int, engine: Snapshot) -> None:
    state = reader.state_at(step)
    where = f"{reader.path} at step {step}"
    assert list(state.blocks.ref) == engine.refs, where
    assert [state.blocks.hash_hex(block) for block in range(reader.num_blocks)] == engine.hashes, where
    assert state.block_tables == engine.tables, where
    assert (state.running, state.waiting) == (engine.running, engine.waiting), where
    assert (state.num_computed, state.num_tokens) == (engine.num_computed, engine.num_tokens), where
    assert state.blocks.free_queue() == engine.eviction_order, where


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 160, 20))
def test_replay_is_the_engine_at_every_step_of_random_workloads(tmp_path: Path, first: int) -> None:
    for seed in seeds(20, first):
        run = random_run(tmp_path / f"seed-{seed}.itrace", seed)
        reader = TraceReader(run.path)
        assert (reader.problems, reader.warnings) == ([], []), reader.path
        assert reader.num_steps == len(run.snapshots), reader.path
        for step, engine in enumerate(run.snapshots):
            assert_same(reader, step, engine)


def test_the_random_workloads_meet_what_a_trace_must_tell(tmp_path: Path) -> None:
    kinds = dict.fromkeys(
        ("preempt", "resume", "abort", "hit", "evict", "unref", "ref", "seal", "finish", "admit"), 0
    )
    num_drafted = num_idle = num_reused_names = num_copied = 0
    for seed in range(60):
        run = random_run(tmp_path / "run.itrace", seed)
        reader = TraceReader(run.path)
        for kind in kinds:
            kinds[kind] += len(reader.events(kind))
        num_drafted += sum(bool(row.spec_token_ids) for out in run.outputs for row in out.scheduled)
        num_idle += sum(not out.scheduled for out in run.outputs)
        num_copied += sum(len(out.copy_in) for out in run.outputs)
        num_reused_names += len(reader.requests) - len({request.request_id for request in reader.requests})
    assert min(*kinds.values(), num_drafted, num_idle, num_reused_names, num_copied) > 5, kinds


@pytest.mark.parametrize("seed", seeds(8))
def test_steps_hold_the_rows_tokens_and_reasons_of_the_scheduler(tmp_path: Path, seed: int) -> None:
    run = random_run(tmp_path / "run.itrace", seed)
    reader = TraceReader(run.path)
    spoken: dict[str, list[int]] = {request.request_id: [] for request in reader.requests}
    for step, out in enumerate(run.outputs):
        record = reader.step(step)
        aborted = {event.request_id for event in reader.events("abort") if event.step == step}
        rows = [(row.request_id, row.start, row.num_tokens) for row in out.scheduled]
        traced = [(row.request_id, row.start, row.num_tokens) for row in record.rows]
        assert traced == [row for row in rows if row[0] not in aborted]
        assert record.preempted == [name for name in out.preempted_request_ids if name not in aborted]
        named = [entry for entry in out.not_scheduled if entry.request_id not in aborted]
        assert reader.reasons(step) == named
        for row in record.rows:
            spoken[row.request_id] += row.tokens
        assert (record.num_running, record.num_waiting) == (
            len(run.snapshots[step].running),
            len(run.snapshots[step].waiting),
        )
    once = {name for name in spoken if len([r for r in reader.requests if r.request_id == name]) == 1}
    for name in once:
        assert spoken[name] == run.tokens[name] == [token for _, token in reader.tokens(name)]


@pytest.mark.parametrize("seed", seeds(12))
def test_every_request_that_waits_has_exactly_one_reason_with_figures(tmp_path: Path, seed: int) -> None:
    run = random_run(tmp_path / "run.itrace", seed)
    reader = TraceReader(run.path)
    for step, engine in enumerate(run.snapshots):
        arrived_late = {request.request_id for request in reader.requests if request.arrived_during(step)}
        for position, name in enumerate(engine.waiting, start=1):
            answer = why(reader, name, step)
            assert answer.answer == "not_scheduled"
            assert answer.position == position and answer.num_waiting == len(engine.waiting)
            if name in arrived_late:
                assert answer.reason is None
                continue
            expected = reason_of(run.outputs[step], name)
            assert expected is not None
            assert (answer.reason, answer.details) == (expected.reason, expected.details)
            assert name in answer.sentence and "?" not in answer.sentence


def test_a_request_that_does_not_wait_has_an_answer_too(tmp_path: Path) -> None:
    for seed in range(10):
        run = random_run(tmp_path / "run.itrace", seed)
        reader = TraceReader(run.path)
        for request in {request.request_id: request for request in reader.requests}.values():
            for step in range(request.added, reader.num_steps):
                answer = why(reader, request.request_id, step)
                row = next((r for r in reader.step(step).rows if r.request_id == request.request_id), None)
                assert (answer.answer == "scheduled") == (row is not None)
                if request.ended is not None and step > request.ended:
                    assert answer.answer == ("aborted" if request.aborted else "finished")


@pytest.mark.parametrize("seed", seeds(4))
def test_the_spans_of_a_life_agree_with_each_of_its_steps(tmp_path: Path, seed: int) -> None:
    reader = TraceReader(random_run(tmp_path / "run.itrace", seed).path)
    for name in {request.request_id for request in reader.requests}:
        request = reader.find(name)
        spans = why_spans(reader, name)
        assert request.ended is not None
        assert [step for span in spans for step in range(span.first, span.last + 1)] == list(
            range(request.added, request.ended + 1)
        )
        for span in spans:
            for step in range(span.first, span.last + 1):
                answer = why(reader, name, step)
                assert (answer.answer, answer.reason) == (span.why.answer, span.why.reason)


def test_the_rest_of_a_long_queue_shares_one_entry_and_each_knows_its_place(tmp_path: Path) -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    with TraceWriter(tmp_path / "run.itrace", header(), scheduler) as tracer:
        for number in range(500):
            request = Request(f"r{number}", [number], SamplingParams(max_tokens=2), arrival_time=number)
            scheduler.add(request)
            tracer.add(request)
        step(scheduler, tracer)
    reader = TraceReader(tmp_path / "run.itrace")
    assert len(reader.reasons(0)) == 1
    answer = why(reader, "r321", 0)
    assert answer.reason == "max_seqs" and answer.position == 321
    assert "Queue position: 321 of 499" in answer.sentence


def test_an_earlier_state_does_not_depend_on_what_was_looked_at_before(tmp_path: Path) -> None:
    run = random_run(tmp_path / "run.itrace", seed=3, num_requests=60)
    reader = TraceReader(run.path)
    order = list(range(reader.num_steps))
    random.Random(0).shuffle(order)
    for step_number in [*order[:150], reader.num_steps - 1, 0]:
        assert_same(reader, step_number, run.snapshots[step_number])


def test_the_next_event_is_found_where_it_happened(tmp_path: Path) -> None:
    run = random_run(tmp_path / "run.itrace", seed=3, num_requests=40)
    reader = TraceReader(run.path)
    for kind in ("admit", "finish", "alloc", "free"):
        events = reader.events(kind)
        steps = [event.step for event in events]
        assert steps == sorted(steps) and events
        for step_number in range(-1, reader.num_steps + 1):
            later = [event for event in events if event.step > step_number]
            assert reader.next_event(kind, step_number) == (later[0] if later else None)


def test_two_runs_of_one_workload_have_one_workload_hash(tmp_path: Path) -> None:
    hashes = []
    for num_blocks, prompt in ((20, [1, 2, 3]), (40, [1, 2, 3]), (40, [1, 2, 4])):
        scheduler = make_scheduler(num_blocks)
        with TraceWriter(tmp_path / "run.itrace", header(), scheduler) as tracer:
            request = Request("r0", prompt, SamplingParams(max_tokens=2))
            scheduler.add(request)
            tracer.add(request)
            step(scheduler, tracer)
        hashes.append(TraceReader(tmp_path / "run.itrace").workload_hash)
    assert hashes[0] == hashes[1] != hashes[2]


def test_owners_of_a_shared_block_are_all_named(tmp_path: Path) -> None:
    scheduler = make_scheduler(block_size=4)
    with TraceWriter(tmp_path / "run.itrace", header(), scheduler) as tracer:
        for number in range(3):
            request = Request(
                f"r{number}", [1] * 8 + [number], SamplingParams(max_tokens=4), arrival_time=number
            )
            scheduler.add(request)
            tracer.add(request)
        for _ in range(2):
            step(scheduler, tracer)
    reader = TraceReader(tmp_path / "run.itrace")
    state = reader.state_at(1)
    first, second, own = state.block_tables["r0"]
    assert state.owners[first] == state.owners[second] == ["r0", "r1", "r2"]
    assert state.owners[own] == ["r0"]
    assert state.blocks.ref[first] == 3 and state.blocks.owner[first] == 0
    assert [event.request_id for event in reader.events("hit")] == ["r1", "r2"]


def step(scheduler, tracer: TraceWriter) -> SchedulerOutput:
    out = scheduler.schedule()
    result = sample(scheduler, out, random.Random(0)) if out.scheduled else ModelRunnerOutput()
    tracer.step(out, result, scheduler.update(out, result), 0.001)
    return out


def test_the_steps_with_a_reason_are_those_whose_reasons_name_it(tmp_path: Path) -> None:
    for seed in range(4):
        reader = TraceReader(random_run(tmp_path / "run.itrace", seed).path)
        for reason in Reason:
            named = [
                step
                for step in range(reader.num_steps)
                if any(entry.reason is reason for entry in reader.reasons(step))
            ]
            assert reader.steps_with(reason) == named

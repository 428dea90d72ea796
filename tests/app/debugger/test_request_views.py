"""The pages Requests and Metrics show what the scheduler did, step by step."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.debugger.colours import PASSED_OVER, WAITS, wait_swatch
from app.debugger.trace_index import TraceIndex
from app.debugger.views.figures import counter_rows, hit_rate, meanings, metrics, thin
from app.debugger.views.phases import MAX_BARS, PHASES, PhaseSpan, gantt, phase_counts, phases, steps_in
from app.debugger.views.requests import block_table, has_clock, output_tokens, preemptions, request_rows
from app.debugger.views.waits import ARRIVED, WORDS, Reasons, hits
from engine.core.sched_output import PASSED_OVER as OVERTAKEN
from engine.core.sched_output import Reason, reason_of
from engine.core.stats import TRACED_COUNTERS
from engine.trace.reader import TraceReader
from tests.trace.trace_workloads import Run, random_run

SEEDS = (0, 2, 3, 5, 7, 9)


class Case(NamedTuple):
    run: Run
    reader: TraceReader
    index: TraceIndex


@pytest.fixture(scope="module", params=SEEDS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    run = random_run(tmp_path_factory.mktemp("run") / "run.itrace", request.param)
    reader = TraceReader(run.path)
    return Case(run, reader, TraceIndex(reader))


def lives(index: TraceIndex) -> list[tuple[int, list[PhaseSpan]]]:
    return [(request.number, phases(index, request)) for request in index.requests]


# ---------------------------------------------------------------------- phases


def test_a_life_has_no_gaps(case: Case) -> None:
    for request in case.index.requests:
        spans = phases(case.index, request)
        steps = [step for span in spans for step in range(span.first, span.last + 1)]
        assert steps == list(range(request.added, request.added + len(steps)))
        assert all(span.last >= span.first for span in spans)
        assert sum(steps_in(spans, phase) for phase in PHASES) == len(steps)


def test_all_lives_is_in_the_phase_that_the_scheduler_had_him_in(case: Case) -> None:
    counts = phase_counts([spans for _, spans in lives(case.index)], case.index.num_steps)
    for step, snapshot in enumerate(case.run.snapshots):
        finished = len(case.reader.step(step).finished)
        running = counts["prefill"][step] + counts["decode"][step]
        assert running == len(snapshot.running) + finished
        assert counts["waiting"][step] + counts["preempted"][step] == len(snapshot.waiting)


def test_rows_that_compute_several_known_tokens_are_prefill_and_later_ones_decode(case: Case) -> None:
    for request in case.index.requests:
        history = case.reader.requests[request.number]
        spans = phases(case.index, request)
        for stay in history.stays:
            seen_token = False
            for row, step in enumerate(history.row_steps):
                if step < stay.admitted or (stay.left is not None and step > stay.left):
                    continue
                gave = history.row_outputs[row] > (history.row_outputs[row - 1] if row else 0)
                if any(span.first <= step <= span.last for span in spans):  # not aborted in this very step
                    phase = next(span.phase for span in spans if span.first <= step <= span.last)
                    assert phase == ("decode" if seen_token else "prefill")
                seen_token |= gave


# ---------------------------------------------------------------------- table


def test_token_steps_and_outputs_are_those_of_the_run(case: Case) -> None:
    for request in case.index.requests:
        steps = case.index.token_steps(request.number)
        assert len(steps) == request.num_output_tokens
        engine = case.run.requests[request.number]
        assert len(engine.token_ids) - engine.num_prompt_tokens == len(steps)
        for step, snapshot in enumerate(case.run.snapshots):
            if case.reader.requests[request.number].lives_at(step):
                known = request.num_prompt_tokens + int((steps <= step).sum())
                assert snapshot.num_tokens[request.request_id] == known


def test_rows_of_the_table_follow_from_the_steps_of_the_tokens(case: Case) -> None:
    ends = [t + d for t, d in zip(case.reader.series.time_s, case.reader.series.duration_s, strict=True)]
    for row, request in zip(request_rows(case.index), case.index.requests, strict=True):
        tokens = case.index.token_steps(row.number).tolist()
        gaps = [after - before for before, after in zip(tokens, tokens[1:], strict=False)]
        assert row.ttft_steps == (tokens[0] - request.added + 1 if tokens else None)
        assert row.itl_p50_steps == (pytest.approx(float(np.median(gaps))) if gaps else None)
        assert row.itl_p99_steps is None or row.itl_p99_steps >= row.itl_p50_steps
        if tokens and row.ttft_ms is not None:
            assert row.ttft_ms == pytest.approx(1e3 * (ends[tokens[0]] - request.added_s))
        waited = sum(
            case.run.snapshots[step].running.count(row.request) == 0
            for step in range(row.arrived, request.admitted if request.admitted is not None else row.arrived)
        )
        if request.admitted is not None:
            assert row.queue_steps == waited == request.admitted - row.arrived
        assert row.preemptions == len(case.reader.requests[row.number].preempted)


def test_the_strip_gives_every_token_with_its_step_and_gap(case: Case) -> None:
    for history in case.reader.requests:
        cells = output_tokens(case.reader, history, has_clock=True)
        assert [cell.token_id for cell in cells] == list(history.tokens)
        assert [cell.step for cell in cells] == case.index.token_steps(history.number).tolist()
        assert sum(cell.gap_steps or 0 for cell in cells) == (cells[-1].step - cells[0].step if cells else 0)


# ---------------------------------------------------------------------- preemptions and tables


def test_what_a_preemption_cost_is_what_the_engine_took(case: Case) -> None:
    total = 0
    for history in case.reader.requests:
        for cost in preemptions(history):
            total += 1
            before = case.run.snapshots[cost.step - 1]
            assert history.request_id in case.run.outputs[cost.step].preempted_request_ids
            assert cost.blocks_given_back == sum(map(bool, before.tables[history.request_id]))
            assert cost.tokens_lost == before.num_computed[history.request_id]
            if cost.resumed is not None:
                rows = case.run.outputs[cost.resumed].scheduled
                start = next(row.start for row in rows if row.request_id == history.request_id)
                assert cost.tokens_found == start
                assert cost.tokens_computed_again == max(0, cost.tokens_lost - start)
    told = [
        name
        for step, output in enumerate(case.run.outputs)
        for name in output.preempted_request_ids
        if name not in case.reader.step(step).aborted  # hung up while the step was in flight
    ]
    assert total == len(told)


def test_block_tables_show_who_else_holds_a_block(case: Case) -> None:
    for step, snapshot in list(enumerate(case.run.snapshots))[::4]:
        for history in case.reader.requests:
            entries = block_table(case.reader, history, step)
            if not history.lives_at(step):
                assert not entries
                continue
            assert [entry.block for entry in entries] == snapshot.tables.get(history.request_id, [])
            for entry in entries:
                assert entry.ref == snapshot.refs[entry.block]
                assert entry.is_sealed == bool(snapshot.hashes[entry.block])
                if entry.block:
                    assert len(entry.others) == entry.ref - 1


# ---------------------------------------------------------------------- gantt

spans = st.lists(
    st.tuples(
        st.integers(0, 30), st.lists(st.tuples(st.sampled_from(PHASES), st.integers(1, 9)), max_size=8)
    ),
    max_size=80,
)


@given(spans, st.integers(0, 60), st.integers(0, 60), st.integers(0, 90), st.integers(1, 70))
def test_bars_are_the_phases_cut_to_the_window(
    drawn: list[tuple[int, list[tuple[str, int]]]], first: int, length: int, skip: int, rows: int
) -> None:
    all_lives = []
    for number, (start, stretches) in enumerate(drawn):
        life, at = [], start
        for phase, steps in stretches:
            life.append(PhaseSpan(phase, at, at + steps - 1))
            at += steps
        all_lives.append((number, life))
    last = first + length
    chart = gantt(all_lives, first, last, skip, rows)
    living = [number for number, life in all_lives if any(s.first <= last and s.last >= first for s in life)]
    assert chart.num_in_window == len(living)
    assert chart.numbers == living[skip : skip + rows]
    cells = Counter(
        (bar.number, step, bar.phase) for bar in chart.bars for step in range(bar.first, bar.last + 1)
    )
    expected = Counter(
        (number, step, span.phase)
        for number, life in all_lives
        if number in chart.numbers
        for span in life
        for step in range(max(span.first, first), min(span.last, last) + 1)
    )
    assert cells == expected
    assert all(chart.numbers[bar.row] == bar.number for bar in chart.bars)


def test_no_chart_has_more_bars_than_a_browser_draws_at_once() -> None:
    busy = [PhaseSpan("decode", step, step) for step in range(4000)]
    chart = gantt([(0, busy), (1, busy)], 0, 4000)
    assert len(chart.bars) == MAX_BARS and chart.numbers == [0] and chart.num_in_window == 2


def test_a_wait_has_the_reason_that_the_scheduler_gave_in_each_step(case: Case) -> None:
    last = case.index.num_steps - 1
    reasons, given = Reasons(case.reader, 0, last), Counter[str]()
    for request in case.index.requests:
        for span in phases(case.index, request):
            if span.phase not in ("waiting", "preempted"):
                continue
            for wait in reasons.waits(request.number, span.first, span.last):
                for step in range(wait.first, wait.last + 1):
                    said = reason_of(case.run.outputs[step], request.request_id)
                    assert wait.reason == (ARRIVED if said is None else said.reason), step
                    given[wait.reason] += 1
    assert given[Reason.NO_BLOCKS] + given[Reason.LOWER_PRIORITY] or not case.run.num_preemptions


def test_hits_are_those_of_the_rows_that_began(case: Case) -> None:
    found = {
        (number, hit.step): hit.tokens
        for number, request in enumerate(case.reader.requests)
        for hit in hits(request)
    }
    expected = {}
    for step in range(case.reader.num_steps):
        record = case.reader.record(step)
        began = [*record.get("new", ()), *record.get("res", ())]
        expected |= {(number, step): start for number, start, *_ in began if start}
    assert found == expected


def test_every_reason_has_words_and_a_colour() -> None:
    assert set(WORDS) == set(WAITS) == {*map(str, Reason), ARRIVED}
    assert set(PASSED_OVER) == set(map(str, OVERTAKEN)) | {str(Reason.OTHER_BATCH)}
    assert len(set(map(wait_swatch, WAITS))) == len(WAITS), "no two look alike"


# ---------------------------------------------------------------------- metrics


@given(
    st.lists(st.one_of(st.just(float("nan")), st.floats(-1e6, 1e6)), max_size=400),
    st.integers(1, 60),
    st.integers(0, 1000),
)
def test_a_thinned_series_keeps_every_peak_where_it_was(
    values: list[float], columns: int, first: int
) -> None:
    thinned = thin(np.array(values), first, columns)
    assert len(thinned.first) <= columns
    ends = [*thinned.first[1:].tolist(), first + len(values)] if values else []
    covered = [
        step for start, end in zip(thinned.first.tolist(), ends, strict=True) for step in range(start, end)
    ]
    assert covered == list(range(first, first + len(values)))
    for start, end, low, high in zip(thinned.first, ends, thinned.low, thinned.high, strict=True):
        numbers = [value for value in values[start - first : end - first] if value == value]
        if numbers:
            assert (low, high) == (min(numbers), max(numbers))
        else:
            assert low != low and high != high


def test_metrics_are_the_counts_after_each_step(case: Case) -> None:
    found = {metric.name: metric.values for metric in metrics(case.index)}
    for step, snapshot in enumerate(case.run.snapshots):
        assert found["running"][step] == len(snapshot.running)
        assert found["waiting"][step] == len(snapshot.waiting)
        assert found["free_blocks"][step] == len(snapshot.eviction_order)
        gone = case.reader.step(step).aborted  # perhaps while the step was in flight: not in the trace's rows
        rows = [row for row in case.run.outputs[step].scheduled if row.request_id not in gone]
        assert found["tokens"][step] == sum(row.num_tokens for row in rows)


def test_the_hit_rate_is_the_engines_own(case: Case) -> None:
    asked = np.cumsum([queries for queries, _ in case.run.prefix_cache])
    hits = np.cumsum([found for _, found in case.run.prefix_cache])
    if not asked[-1]:
        assert not np.nan_to_num(hit_rate(case.index.requests, case.index.num_steps)).any(), "caching is off"
        return
    hung_up = [request.ended or 0 for request in case.reader.requests if request.aborted_late]
    asked = asked[
        : min(hung_up, default=len(asked))
    ]  # an admission in the step in which it hung up is not in the trace
    hits = hits[: len(asked)]
    rate = hit_rate(case.index.requests, case.index.num_steps)[: len(asked)]
    assert np.isnan(rate[asked == 0]).all()
    assert rate[asked > 0] == pytest.approx(100 * hits[asked > 0] / asked[asked > 0])


def test_every_counter_is_explained() -> None:
    shared = {"num_collectives", "num_draft_tokens", "host_bytes_out", "host_bytes_in", "kv_bytes_sent"}
    explained = meanings()
    assert set(TRACED_COUNTERS) - set(explained) <= shared, "a counter without a docstring of its own"
    [row] = counter_rows({"num_evictions": 3})
    assert (row.total, row.meaning) == (3, "Cached blocks reassigned to other tokens.")


def test_a_run_without_requests_has_empty_charts(tmp_path: Path) -> None:
    run = random_run(tmp_path / "run.itrace", seed=0, num_requests=0)
    index = TraceIndex(TraceReader(run.path))
    assert request_rows(index) == [] and lives(index) == [] and not has_clock(index.series)
    assert [len(metric.values) for metric in metrics(index)] == [0] * 6
    assert len(thin(metrics(index)[0].values).first) == 0

"""Two runs that differ in one planted decision: the diff finds it, exactly it, and says why on both sides."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from app.debugger.runs import RECORDED
from engine.config import CacheConfig, SchedulerConfig
from engine.core.request import Request
from engine.core.sched_output import ModelRunnerOutput
from engine.core.scheduler import Scheduler, StepPlan
from engine.sampling_params import SamplingParams
from engine.trace.diff import TraceDiff, diff
from engine.trace.divergence import describe
from engine.trace.fork import fork
from engine.trace.reader import TraceReader
from engine.trace.writer import TraceWriter
from tests.seeds import seeds
from tests.trace.fork_workloads import crowded_run
from tests.trace.trace_workloads import random_run


@dataclass
class Ask:
    name: str
    step: int
    prompt: int
    output: int = 6
    salt: str | None = None


@dataclass
class Plan:
    """A workload with as many tokens a step as it is told."""

    asks: list[Ask]
    budget: int = 16
    num_blocks: int = 60
    max_num_seqs: int = 8
    cls: type[Scheduler] = Scheduler
    aborts: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    """Duration of each step, in seconds."""
    say: int = 0
    """First output token of each request."""

    def run(self, path: Path) -> TraceReader:
        config = SchedulerConfig(self.budget, self.max_num_seqs, 200)
        scheduler = self.cls(config, CacheConfig(self.num_blocks, 4))
        now = [0.0]
        with TraceWriter(path, {}, scheduler, clock=lambda: now[0]) as tracer:
            step = 0
            while scheduler.has_unfinished() or step <= max(ask.step for ask in self.asks):
                for ask in (ask for ask in self.asks if ask.step == step):
                    prompt = [1000 * (1 + self.asks.index(ask)) + i for i in range(ask.prompt)]
                    params = SamplingParams(max_tokens=ask.output)
                    request = Request(ask.name, prompt, params, arrival_time=step, cache_salt=ask.salt)
                    scheduler.add(request)
                    tracer.add(request)
                if step in self.aborts:
                    tracer.abort([o.request_id for o in scheduler.abort([self.aborts[step]])])
                out, result = scheduler.schedule(), ModelRunnerOutput()
                for row in out.scheduled:
                    live = scheduler.requests[row.request_id]
                    if row.start + row.num_tokens >= live.num_tokens:
                        result.sampled_token_ids[row.request_id] = [self.say + live.num_output_tokens]
                now[0] += self.seconds
                tracer.step(out, result, scheduler.update(out, result), self.seconds)
                step += 1
        return TraceReader(path)


THREE = [Ask("a", 0, 20), Ask("b", 0, 9), Ask("c", 4, 30)]


def compare(folder: Path, a: Plan, b: Plan) -> TraceDiff:
    return diff(a.run(folder / "a.itrace"), b.run(folder / "b.itrace"))


def test_a_run_beside_itself_differs_in_nothing(tmp_path: Path) -> None:
    found = compare(tmp_path, Plan(THREE), Plan(THREE))
    assert (found.first, found.divergences, found.first_blocks, found.num_different) == (None, [], None, 0)
    assert found.same_workload and not found.settings and not found.workload_notes
    assert all(figure.delta == 0 for figure in found.figures if figure.a is not None)
    assert {delta.tokens for delta in found.requests} == {"same"}


@pytest.mark.parametrize("seed", seeds(6))
def test_so_does_a_fork_without_a_change(tmp_path: Path, seed: int) -> None:
    reader = crowded_run(tmp_path / "a.itrace", seed)
    fork(reader, tmp_path / "b.itrace")
    found = diff(reader, TraceReader(tmp_path / "b.itrace"))
    assert found.first is None and found.first_blocks is None


def holds_back(step: int, name: str) -> type[Scheduler]:
    """Decides otherwise once: does not admit a request in one step."""

    class HoldsBack(Scheduler):
        def _schedule_waiting(self, plan: StepPlan) -> None:
            waiting = [request for request in self.waiting if request.request_id == name]
            if self.stats.step != step or not waiting:
                super()._schedule_waiting(plan)

    return HoldsBack


def preempts(step: int, name: str) -> type[Scheduler]:
    """Decides otherwise once: takes the blocks of the last in line without need."""

    class Preempts(Scheduler):
        def _schedule_running(self, plan: StepPlan) -> None:
            if self.stats.step == step and self.running[-1].request_id == name:
                plan.preempted.append(name)
                self._preempt(self.running[-1])
            super()._schedule_running(plan)

    return Preempts


def cuts(step: int, name: str, most: int) -> type[Scheduler]:
    """Decides otherwise once: a shorter chunk of one request."""

    class Cuts(Scheduler):
        def _num_new_tokens(self, request: Request, start: int, plan: StepPlan) -> int:
            count = super()._num_new_tokens(request, start, plan)
            return min(count, most) if (self.stats.step, request.request_id) == (step, name) else count

    return Cuts


def test_a_request_held_back_for_a_step_is_found(tmp_path: Path) -> None:
    found = compare(tmp_path, Plan(THREE), Plan(THREE, cls=holds_back(4, "c")))
    first = found.first
    assert first is not None and first.step == 4 and first.requests == ["c"]
    assert first.kinds == ["admitted", "rows"]
    assert first.a.decided.startswith("Started request c (")
    assert "left out request c" in first.b.decided.lower()
    assert first.a.reasons[0].startswith("Request c was scheduled: it computed")
    assert first.b.reasons[0].startswith("Request c ")
    assert found.divergences[:2] == [4, 5], "held back in A's eyes, then admitted alone"


def test_a_preemption_that_changes_no_row_of_anybody_else_is_found(tmp_path: Path) -> None:
    found = compare(tmp_path, Plan(THREE), Plan(THREE, cls=preempts(6, "c")))
    first = found.first
    assert first is not None and first.step == 6
    assert first.kinds[0] == "preempted" and first.requests == ["c"]
    assert "Preempted request c" in first.b.decided and "Preempted" not in first.a.decided
    assert {figure.name: (figure.a, figure.b) for figure in found.figures}["preemptions"] == (0, 1)
    assert [delta.preemptions for delta in found.requests] == [(0, 0), (0, 0), (0, 1)]


def test_a_swap_out_is_the_difference_and_not_the_resumption_that_it_shortens(tmp_path: Path) -> None:
    a = TraceReader(RECORDED / "recompute.itrace")
    fork(a, tmp_path / "b.itrace", changes={"preemption_mode": "swap", "num_host_blocks": 64})
    b = TraceReader(tmp_path / "b.itrace")
    found = diff(a, b)
    (victim,) = a.events("preempt")
    assert found.first is not None and found.first.step == victim.step
    assert found.first.kinds == ["copies"] and found.first.requests == [victim.request_id]
    num_copied = len(b.step(victim.step).copy_out)
    assert f"Swapped {num_copied} blocks of request {victim.request_id} to the host." in found.first.b.decided
    assert "copied no block to the host" in found.first.a.decided
    back = describe(a, b, b.events("resume")[0].step)
    assert back.kinds == ["copies", "rows"]
    assert f"Copied {num_copied} blocks back from the host" in back.b.decided


def test_a_victim_that_had_no_row_in_either_run_is_a_decision_too(tmp_path: Path) -> None:
    """Both runs compute the same in the step; only one of them preempts a request."""
    asks = [Ask("a", 0, 40, 3), Ask("b", 1, 6)]

    plan = Plan(asks, budget=16)
    a = plan.run(tmp_path / "a.itrace")
    waiting = next(step for step in range(a.num_steps) if a.step(step).num_waiting)
    assert waiting == 1, "b waits while a computes its prompt"
    found = diff(a, Plan(asks, budget=16, cls=preempts(5, "b")).run(tmp_path / "b.itrace"))
    assert found.first is not None and "preempted" in found.first.kinds


def test_a_setting_that_only_the_newer_file_knows_differs_only_from_its_default(tmp_path: Path) -> None:
    found = compare(tmp_path, Plan(THREE), Plan(THREE))
    a, b = (TraceReader(path) for path in sorted(tmp_path.glob("*.itrace")))
    for name in ("max_loras", "num_lookahead_tokens"):
        del a.header["config"]["scheduler"][name]
    b.header["config"]["scheduler"]["never_heard_of"] = 1
    assert diff(a, b).settings == found.settings == []
    b.header["config"]["scheduler"]["max_loras"] = 3
    assert diff(a, b).settings == [("max_loras", 0, 3)]


def test_a_shorter_chunk_is_found_with_both_lengths(tmp_path: Path) -> None:
    found = compare(tmp_path, Plan(THREE), Plan(THREE, cls=cuts(4, "c", 5)))
    first = found.first
    assert first is not None and (first.step, first.kinds, first.requests) == (4, ["rows"], ["c"])
    assert "5 tokens from position 0 instead of" in first.b.decided
    assert re.search(r" (1 row|[2-9] rows), \d+ of at most 16 tokens", first.b.decided)


def test_another_budget_is_named_among_the_settings(tmp_path: Path) -> None:
    found = compare(tmp_path, Plan(THREE), Plan(THREE, budget=10))
    assert ("max_num_batched_tokens", 16, 10) in found.settings
    assert found.first is not None and found.first.step == 0
    used = {figure.name: (figure.a, figure.b) for figure in found.figures}["budget used"]
    assert used[0] is not None and used[1] is not None and used[0] < used[1] <= 100


def test_budgets_of_a_fork_count_from_its_step_on(tmp_path: Path) -> None:
    a = Plan(THREE).run(tmp_path / "a.itrace")
    fork(a, tmp_path / "b.itrace", at=4, changes={"max_num_batched_tokens": 10})
    b = TraceReader(tmp_path / "b.itrace")
    found = diff(a, b)
    offered = 4 * 16 + 10 * (sum(bool(b.step(i).rows) for i in range(b.num_steps)) - 4)
    used = next(figure.b for figure in found.figures if figure.name == "budget used")
    assert used == round(100 * sum(b.series.num_tokens) / offered, 1)


def test_a_longer_run_is_told_where_the_other_is_over(tmp_path: Path) -> None:
    asks = [Ask("a", 0, 20, 6)]
    found = compare(tmp_path, Plan(asks), Plan([Ask("a", 0, 20, 9)]))
    assert found.first is not None and found.first.kinds == ["end"]
    assert "ended in step" in found.first.a.decided and "Continues: a" in found.first.b.decided
    assert found.requests[0].tokens == "shorter" and not found.same_workload
    assert found.workload_notes == ["a has other sampling parameters"]


def test_blocks_that_differ_under_the_same_decisions_are_said(tmp_path: Path) -> None:
    salted = [Ask("a", 0, 20), Ask("b", 0, 9), Ask("c", 4, 30, salt="x")]
    found = compare(tmp_path, Plan(THREE), Plan(salted))
    assert found.first is None and found.first_blocks is not None
    assert not found.same_workload and found.workload_notes == ["c has another cache salt"]


def test_other_words_are_flagged_by_their_position(tmp_path: Path) -> None:
    found = compare(tmp_path, Plan(THREE), Plan(THREE, say=7))
    assert {delta.tokens for delta in found.requests} == {"different at 0"}


def test_who_is_missing_is_told_by_name(tmp_path: Path) -> None:
    found = compare(tmp_path, Plan(THREE), Plan(THREE[:2]))
    assert found.workload_notes == ["only A has c"]
    missing = found.requests[-1]
    assert (missing.request_id, missing.tokens, missing.ends) == ("c", "missing in b", ("length", "missing"))
    assert found.first is not None and "Request c is not in this run." in found.first.b.reasons


def test_namesakes_are_compared_in_their_order(tmp_path: Path) -> None:
    twice = [Ask("a", 0, 8, 2), Ask("a", 6, 12, 3)]
    found = compare(tmp_path, Plan(twice), Plan(twice, cls=holds_back(6, "a")))
    assert [delta.request_id for delta in found.requests] == ["a", "a#2"]
    assert found.first is not None and (found.first.step, found.first.requests) == (6, ["a#2"])
    assert found.requests[0].end_step[0] == found.requests[0].end_step[1]
    assert found.requests[1].end_step[0] + 1 == found.requests[1].end_step[1]


def test_each_requests_figures_are_counted_by_hand(tmp_path: Path) -> None:
    """One request, 20 tokens of prompt, 16 a step; in B it loses its blocks in step 3, when it knew 22 tokens."""
    asks = [Ask("a", 0, 20, 6)]
    found = compare(tmp_path, Plan(asks), Plan(asks, cls=preempts(3, "a")))
    (delta,) = found.requests
    assert delta.first_token_step == (1, 1)
    assert delta.computed_tokens[0] == 20 + 5, "the last token is sampled and never computed"
    assert delta.end_step == (6, delta.end_step[1])
    again = delta.computed_tokens[1] - delta.computed_tokens[0]
    kept = next(figure.b for figure in found.figures if figure.name == "found on resume")
    assert delta.recomputed_tokens == (0, again) and again + kept == 21, "KV of 21 tokens was lost"
    assert delta.waiting_steps[0] == 0 and delta.preemptions == (0, 1)


def test_times_are_compared_only_where_both_runs_had_a_clock(tmp_path: Path) -> None:
    timed = compare(tmp_path, Plan(THREE, seconds=0.25), Plan(THREE, seconds=0.5))
    assert timed.clocks == ("wall", "wall")
    figures = {figure.name: (figure.a, figure.b) for figure in timed.figures}
    assert figures["ITL, p50"] == (250.0, 500.0)
    half = compare(tmp_path, Plan(THREE, seconds=0.25), Plan(THREE))
    assert half.clocks == ("wall", "steps") and "ITL, p50" not in {figure.name for figure in half.figures}


@pytest.mark.parametrize("seed", seeds(8))
def test_sums_are_those_of_the_steps(tmp_path: Path, seed: int) -> None:
    """Each figure against the slow way: record by record, token by token."""
    reader = TraceReader(random_run(tmp_path / "run.itrace", seed).path)
    figures = {figure.name: figure.a for figure in diff(reader, reader).figures}
    steps = [reader.step(step) for step in range(reader.num_steps)]
    assert figures["computed"] == sum(row.num_tokens for step in steps for row in step.rows)
    assert figures["preemptions"] == sum(len(step.preempted) for step in steps)
    assert figures["prefix hits"] == sum(request.num_cached_tokens for request in reader.requests)
    assert figures["most waiting"] == max(step.num_waiting for step in steps)
    assert figures["recomputed"] == recomputed(reader, steps)
    waits = [len(reader.state_at(step).waiting) for step in range(reader.num_steps)]
    waited = sum(delta.waiting_steps[0] for delta in diff(reader, reader).requests)
    assert waited == sum(waits)


def recomputed(reader: TraceReader, steps: list[Any]) -> int:
    """Positions whose KV had existed once before they were computed, by a set of positions per request."""
    written: dict[int, set[int]] = {}
    count = 0
    for record in steps:
        for row in record.rows:
            request = next(
                r for r in reader.requests if r.request_id == row.request_id and record.step in r.row_steps
            )
            had = written.setdefault(request.number, set(range(request.num_cached_tokens)))
            known = request.num_prompt_tokens + request.num_outputs_at(record.step)
            positions = range(row.start, row.start + row.num_tokens)
            count += sum(position in had for position in positions)
            had.update(position for position in positions if position < known)
    return count

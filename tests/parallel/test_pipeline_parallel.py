"""Several steps under way: no request is in two of them, and nothing that one takes is read by another too early."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest

from engine import LLM, SamplingParams
from engine.core.sched_output import ModelRunnerOutput, SchedulerOutput
from engine.engine_core import EngineCore
from engine.trace.reader import TraceReader
from tests.core.driver import Driver, rows
from tests.core.shadow_kv import Simulation, Summary
from tests.core.workloads import Workload
from tests.engine.harness import request, run, tokens
from tests.parallel import probes
from tests.seeds import seeds

PROMPTS = ["What do you recommend for a rainy evening?", "Readers of", "Hello", "Good morning"]


class PipelinedSimulation(Simulation):
    """The shadow KV with steps under way: workers compute in order, results come `depth - 1` steps later."""

    def __init__(self, workload: Workload, depth: int) -> None:
        limits = replace(workload.scheduler, max_concurrent_batches=depth)
        super().__init__(replace(workload, scheduler=limits), strict=False)
        self.depth = depth
        self.under_way: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = deque()
        self.most_under_way = 0

    def _step(self, step: int) -> None:
        self._abort(step, "before")
        out = self.scheduler.schedule()
        computing = {row.request_id for earlier, _ in self.under_way for row in earlier.scheduled}
        live = {row.request_id for row in out.scheduled if row.init is None}
        assert not computing & live, "a request is in two steps at once"
        self.under_way.append((out, self.worker.execute(out)))
        self._abort(step, "in_flight")
        has_work = [bool(earlier.scheduled) for earlier, _ in self.under_way]
        self.most_under_way = max(self.most_under_way, sum(has_work))
        if len(self.under_way) == self.depth or not out.scheduled:
            earlier, result = self.under_way.popleft()
            self._inject_errors(step, earlier, result)
            for output in self.scheduler.update(earlier, result):
                self._receive(output)
            self._count(earlier, result)
        self._abort(step, "after")
        self.scheduler.check_integrity()


@pytest.mark.parametrize("depth", [2, 3])
def test_any_workload_reads_only_its_own_kv_with_several_steps_under_way(depth: int) -> None:
    total, most = Summary(), 0
    for seed in seeds(120):
        simulation = PipelinedSimulation(Workload.random(seed), depth)
        try:
            summary = simulation.run()
        except Exception as error:
            pytest.fail(f"Workload.random({seed}) at depth {depth}: {type(error).__name__}: {error}")
        most = max(most, simulation.most_under_way)
        for figure in fields(Summary):
            setattr(total, figure.name, getattr(total, figure.name) + getattr(summary, figure.name))
    assert most == depth
    assert min(total.preemptions, total.hit_tokens, total.aborted) > 10


def test_requests_are_shared_out_among_the_steps_under_way() -> None:
    driver = Driver(max_num_seqs=8)
    driver.scheduler.config = replace(driver.scheduler.config, max_concurrent_batches=2)
    for name in "abcde":
        driver.add(name, [ord(name)] * 4)
    first, second = driver.schedule(), driver.schedule()
    assert set(rows(first)) == set("abc") and set(rows(second)) == set("de")
    assert not driver.schedule().scheduled
    driver.update(first)
    assert set(rows(driver.schedule())) == set("abc")


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("num_requests", [3, 4, 5, 6, 7, 9])
def test_no_stage_slot_is_idle_when_the_stages_do_not_divide_the_requests(
    stages: int, num_requests: int
) -> None:
    assert idle_slots(stages, num_requests) == max(0, stages - num_requests) * STEPS
    assert idle_slots(stages, num_requests, max_num_seqs=stages) == max(0, stages - num_requests) * STEPS


@pytest.mark.parametrize("stages", [2, 3])
def test_waiting_requests_without_blocks_leave_no_stage_idle(stages: int) -> None:
    """Only 5 requests find blocks; the first step admits all of them, and the next round shares them out."""
    assert idle_slots(stages, 60, num_blocks=5, block_size=64) == 0


STEPS = 12


def idle_slots(stages: int, num_requests: int, **settings: int) -> int:
    """Return the slots of stages without rows in STEPS full steps, after every request has its first token."""
    driver = Driver(**{"max_num_seqs": 64, "budget": 8192, "num_blocks": 600, **settings})
    driver.scheduler.config = replace(driver.scheduler.config, max_concurrent_batches=stages)
    for number in range(num_requests):
        driver.add(str(number), [number] * 4, max_tokens=50)
    under_way: deque[SchedulerOutput] = deque()
    idle = []
    for _ in range(3 * stages + STEPS):
        while len(under_way) < stages:
            out = driver.schedule()
            if not out.scheduled:
                break
            under_way.append(out)
        idle.append(stages - len(under_way))
        driver.update(under_way.popleft())
    return sum(idle[-STEPS:])


def test_a_prefix_that_another_step_computes_is_waited_for() -> None:
    driver = Driver(max_num_seqs=8, block_size=4)
    driver.scheduler.config = replace(driver.scheduler.config, max_concurrent_batches=2)
    prompt = list(range(13))
    driver.add("a", prompt)
    driver.add("b", prompt)
    first, second = driver.schedule(), driver.schedule()
    assert set(rows(first)) == {"a"} and not second.scheduled
    driver.update(first)
    third, fourth = driver.schedule(), driver.schedule()
    assert set(rows(third)) == {"a"} and rows(fourth) == {"b": (12, 1)}


def test_a_preempted_requests_result_is_dropped_and_its_id_may_be_used_again() -> None:
    driver = Driver(max_num_seqs=8)
    driver.scheduler.config = replace(driver.scheduler.config, max_concurrent_batches=3)
    driver.add("a", [1, 2, 3])
    old = driver.schedule()
    driver.scheduler.abort(["a"])
    again = driver.add("a", [4, 5, 6, 7])
    new = driver.schedule()
    driver.sample = lambda request: [50]
    driver.update(old)
    assert again.num_tokens == 4, "the old request's token is not the new one's"
    driver.update(new)
    assert again.token_ids[4:] == [50]


@pytest.fixture(scope="module")
def staged() -> Iterator[LLM]:
    with LLM("shop", dtype="float32", pipeline_parallel_size=2, debug_checks=True) as llm:
        yield llm


@pytest.mark.slow
def test_shop_says_the_same_in_two_stages_greedy_and_seeded(staged: LLM) -> None:
    params = [
        SamplingParams(max_tokens=12, temperature=t, seed=2, n=n)
        for t, n in ((0, 1), (1, 2), (0.7, 1), (0, 1))
    ]
    with LLM("shop", dtype="float32") as alone:
        expected = [[list(c.token_ids) for c in o.outputs] for o in alone.generate(PROMPTS, params)]
    got = [[list(c.token_ids) for c in o.outputs] for o in staged.generate(PROMPTS, params)]
    assert got == expected
    held = staged.llm_engine.engine_core.executor.collective_rpc(probes.held)
    assert [layers for _, layers in held] == [3, 3]


@pytest.mark.slow
def test_the_bubble_is_a_stage_for_one_request_and_none_for_two(staged: LLM) -> None:
    core = staged.llm_engine.engine_core
    assert isinstance(core, EngineCore)

    def idle_stages(num_requests: int) -> list[int]:
        params = {"max_tokens": 20, "temperature": 0.0}
        for number in range(num_requests):
            core.add_request(request(str(number), [30 + number, 31, 32], **params))
        idle = []
        while core.has_unfinished():
            core.step()
            idle.append(core.scheduler.stats.num_idle_stages)
        return idle

    assert set(idle_stages(1)) == {1}
    two = idle_stages(2)
    assert sum(two) <= 2 and len(two) >= 40, "only while the last step drains"


@pytest.mark.slow
def test_a_call_between_steps_takes_no_steps_answer(staged: LLM) -> None:
    core = staged.llm_engine.engine_core
    for number in range(2):
        core.add_request(request(str(number), [30 + number, 31, 32], max_tokens=6))
    core.step()
    assert len(core.executor.collective_rpc(probes.pid)) == 2
    while core.has_unfinished():
        core.step()


@pytest.mark.slow
def test_a_trace_of_pipeline_stages_verifies(make_engine: Callable[..., EngineCore], tmp_path: Path) -> None:
    """A traced pipeline has one step under way, because replay plays one step at a time."""
    path = tmp_path / "run.itrace"
    engine = make_engine(pipeline_parallel_size=2, trace=str(path), num_gpu_blocks_override=16)
    assert engine.config.scheduler.max_concurrent_batches == 1
    outputs = run(engine, [request(f"r{i}", [3, 4, 5, i], max_tokens=20) for i in range(6)])
    engine.shutdown()
    reader = TraceReader(path)
    assert (reader.problems, reader.warnings) == ([], []) and reader.is_complete
    assert reader.events("preempt")
    assert {name: [token for _, token in reader.tokens(name)] for name in outputs} == tokens(outputs)

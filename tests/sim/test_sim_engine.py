"""The loop: every request finishes, queueing laws hold, decisions equal the live engine's."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest

from engine.config import CacheConfig, ConfigError, EngineArgs, SchedulerConfig
from engine.core.request import Request
from engine.core.sched_output import SchedulerOutput
from engine.sampling_params import SamplingParams
from engine.sim.cost import CostModel, StepLoad
from engine.sim.engine import SimEngine
from engine.sim.hardware import get_hardware
from engine.sim.memory import Deployment
from engine.sim.models import get_model
from engine.sim.report import percentiles
from engine.sim.run import make_engine, simulate
from engine.sim.speculation import Speculation
from engine.sim.workload import Lengths, SimRequest, Workload, parse_phases, read_trace

FIXED = Lengths.parse


class ConstantCost:
    """Every step takes the same time: queues become textbook queues."""

    window = None

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def seconds(self, load: StepLoad) -> float:
        return self._seconds

    def decode_seconds(self, num_rows: int, context: int) -> float:
        return self._seconds


def small(**more: object) -> Deployment:
    return Deployment(get_model("llama-3-8b"), get_hardware("h100"), **more)


def test_every_request_finishes_and_every_token_is_counted() -> None:
    work = list(Workload(300, 30, Lengths.parse("100-900"), Lengths.parse("1-300"), seed=3))
    report = simulate(make_engine(small(), num_blocks=1000), work)
    assert report.num_preemptions > 0  # the cache is too small for all of them
    assert report.num_finished == report.num_requests == 300
    assert report.output_tokens == sum(request.output_len for request in work)
    assert report.ttft is not None and report.ttft.count == 300
    assert report.itl is not None and report.itl.count == report.output_tokens - 300
    assert report.peak_kv_cache_usage <= 1


def test_one_request_alone_takes_its_prompt_and_then_a_step_a_token() -> None:
    engine = make_engine(small())
    report = simulate(engine, [SimRequest(0, 5.0, 1000, 3)])
    cost = engine.cost
    steps = [
        StepLoad(1, 1000, 1, 0, 1000 * 1001 // 2, 1000),
        StepLoad(1, 1, 1, 1001),
        StepLoad(1, 1, 1, 1002),
    ]
    times = [cost.seconds(load) for load in steps]
    assert report.ttft is not None and report.ttft.p50 == pytest.approx(times[0])
    assert report.e2e is not None and report.e2e.p50 == pytest.approx(sum(times))


def test_the_same_seed_gives_the_same_run_and_another_a_different_one() -> None:
    def run(seed: int) -> dict[str, object]:
        return asdict(
            simulate(make_engine(small()), Workload(100, 10, FIXED("50-500"), FIXED("5-50"), seed=seed))
        )

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_a_single_server_queue_waits_as_long_as_pollaczek_and_khinchine_say() -> None:
    """M/D/1: one request at a time, constant service S, load rho: mean wait rho S / (2 (1 - rho))."""
    service, load = 1.0, 0.7
    engine = SimEngine(SchedulerConfig(64, 1, 64), CacheConfig(10), ConstantCost(service / 4))
    report = simulate(engine, Workload(10_000, load / service, FIXED("8"), FIXED("4")))
    assert report.queue is not None
    assert report.queue.mean == pytest.approx(load * service / (2 * (1 - load)), rel=0.08)


def test_littles_law_holds_for_the_queue_and_for_the_batch() -> None:
    """Mean number = arrival rate x mean time, waiting and running: levels and times are kept independently."""
    engine = make_engine(small(max_num_seqs=24))
    report = simulate(engine, Workload(1500, 19, FIXED("500"), FIXED("150"), seed=5))
    assert report.queue is not None and report.e2e is not None
    assert report.queue.mean > 0.1
    throughput = report.num_finished / report.seconds
    assert report.mean_running * report.busy_share == pytest.approx(
        throughput * (report.e2e.mean - report.queue.mean), rel=0.02
    )
    assert report.mean_waiting * report.busy_share == pytest.approx(throughput * report.queue.mean, rel=0.05)


def test_a_step_under_way_does_not_see_who_arrives() -> None:
    engine = SimEngine(SchedulerConfig(64, 4, 64), CacheConfig(40), ConstantCost(1.0))
    engine.run([SimRequest(0, 0.0, 8, 5), SimRequest(1, 2.5, 8, 1)])
    late = next(record for record in engine.recorder.finished if record.request.index == 1)
    assert (late.scheduled, late.first_token) == (3.0, 4.0)


def test_idle_time_passes_at_no_cost() -> None:
    engine = SimEngine(SchedulerConfig(64, 4, 64), CacheConfig(40), ConstantCost(1.0))
    engine.run([SimRequest(0, 0.0, 8, 2), SimRequest(1, 1e6, 8, 2)])
    assert engine.now == 1e6 + 2
    assert engine.recorder.num_steps == 4


def test_what_can_never_run_is_refused_and_the_rest_is_served() -> None:
    report = simulate(
        make_engine(small(), num_blocks=10), [SimRequest(0, 0, 9000, 5), SimRequest(1, 0, 50, 5)]
    )
    assert (report.num_finished, report.num_rejected) == (1, 1)
    assert "max_model_len" in (report.rejected_because or "")


def test_shared_beginnings_are_hit_as_often_as_the_cache_allows() -> None:
    work = Workload(200, 5, FIXED("500"), FIXED("10"), num_prefixes=1, prefix_len=320)
    report = simulate(make_engine(small()), work)
    assert report.prefix_cache_hit_rate == pytest.approx(199 / 200 * 320 / 500, rel=0.01)
    assert simulate(make_engine(small(), enable_prefix_caching=False), work).prefix_cache_hit_rate == 0


def test_a_smaller_budget_shortens_the_worst_gap_and_lengthens_the_first_token() -> None:
    """E15: a long prompt beside decodes."""
    work = [SimRequest(0, 0.0, 50, 200), SimRequest(1, 0.5, 8000, 2)]
    reports = [simulate(make_engine(small(max_num_batched_tokens=budget)), work) for budget in (512, 8192)]
    (small_gap, small_ttft), (large_gap, large_ttft) = ((r.itl.max, r.ttft.max) for r in reports)
    assert small_gap < large_gap / 4
    assert small_ttft > large_ttft


def test_fewer_seats_mean_faster_tokens_and_longer_waits() -> None:
    """E16."""
    work = list(Workload(400, 40, FIXED("400"), FIXED("100")))
    few, many = (simulate(make_engine(small(max_num_seqs=seats)), work) for seats in (8, 256))
    assert few.itl.mean < many.itl.mean and few.ttft.mean > many.ttft.mean
    assert few.output_tokens_per_s < many.output_tokens_per_s


def test_drafts_give_the_tokens_per_step_that_leviathan_says() -> None:
    k, a = 3, 0.7
    engine = make_engine(small(), speculation=Speculation(k, a))
    report = simulate(engine, [SimRequest(index, 100.0 * index, 20, 400) for index in range(20)])
    assert report.output_tokens == 20 * 400
    per_step = 20 * 399 / (report.num_steps - 20)
    assert per_step == pytest.approx((1 - a ** (k + 1)) / (1 - a), rel=0.03)


def test_bad_drafts_and_a_dear_drafter_make_it_slower() -> None:
    work = [SimRequest(0, 0.0, 20, 300)]
    plain = simulate(make_engine(small()), work).seconds
    draft = CostModel(Deployment(get_model("llama-3-8b"), get_hardware("h100")))
    assert simulate(make_engine(small(), speculation=Speculation(4, 0.05, draft)), work).seconds > 2 * plain
    assert simulate(make_engine(small(), speculation=Speculation(4, 0.9)), work).seconds < plain / 2


def test_the_simulator_decides_what_the_live_engine_decides() -> None:
    """Same requests between the same steps: the same rows, blocks, preemptions and finishes, step by step."""
    from engine.engine_core import EngineCore

    args = EngineArgs(
        model="shop",
        max_num_seqs=3,
        max_num_batched_tokens=24,
        num_gpu_blocks_override=9,
        block_size=8,
        device="cpu",
    )
    core = EngineCore.from_args(args)
    live: list[tuple[object, ...]] = []
    simulated: list[tuple[object, ...]] = []
    engine = SimEngine(
        core.config.scheduler,
        core.config.cache,
        ConstantCost(1.0),
        on_step=lambda out, load, seconds: simulated.append(decisions(out)),
    )
    work = [
        SimRequest(i, float(when), p, o)
        for i, (when, p, o) in enumerate([(0, 30, 12), (0, 9, 20), (1, 17, 9), (4, 5, 5)])
    ]
    engine.run(work)
    schedule = core.scheduler.schedule

    def noted() -> SchedulerOutput:
        out = schedule()
        live.append(decisions(out))
        return out

    core.scheduler.schedule = noted
    try:
        step = 0
        while work or core.has_unfinished():
            while work and work[0].arrival <= step:
                request = work.pop(0)
                params = SamplingParams(temperature=0, max_tokens=request.output_len, ignore_eos=True)
                tokens = [(37 * request.index + position) % 2000 for position in range(request.prompt_len)]
                core.add_request(Request(str(request.index), tokens, params, arrival_time=request.arrival))
            core.step()
            step += 1
    finally:
        core.shutdown()
    assert simulated == live
    assert any(preempted for _, preempted, _ in live), "no request was preempted: the comparison is too easy"


def decisions(out: SchedulerOutput) -> tuple[object, ...]:
    rows = [(row.request_id, row.start, row.num_tokens, tuple(row.new_block_ids)) for row in out.scheduled]
    return rows, tuple(out.preempted_request_ids), tuple(out.finished_request_ids)


def test_swapping_copies_what_recomputing_would_compute_again() -> None:
    """E18: the same preemptions, answered in two ways."""
    work = [SimRequest(index, 0.0, 400, 400) for index in range(12)]
    recompute = simulate(make_engine(small(), num_blocks=400), work)
    swap = simulate(make_engine(small(), num_blocks=400, swap_space=8.0), work)
    assert recompute.num_preemptions > 0 and swap.num_preemptions > 0
    assert recompute.host_bytes == 0 and swap.host_bytes > 0
    assert recompute.prefill_tokens > swap.prefill_tokens
    assert swap.output_tokens == recompute.output_tokens == 12 * 400


def test_steps_that_may_copy_are_all_planned() -> None:
    """Swap-outs are decided while a step is planned, so no step may be skipped: the run is the same either way."""
    work = [SimRequest(index, 0.05 * index, 300, 300) for index in range(12)]
    reports = [
        simulate(make_engine(small(), num_blocks=200, swap_space=8.0, fast_forward=fast), work)
        for fast in (True, False)
    ]
    assert reports[0] == reports[1]
    assert reports[0].host_bytes > 0


def test_offloading_brings_evicted_prefixes_back_from_the_host() -> None:
    work = [
        SimRequest(index, 2.0 * index, 600, 5, prefix_id=index % 8, prefix_len=512) for index in range(32)
    ]
    without = simulate(make_engine(small(), num_blocks=150), work)
    with_host = simulate(make_engine(small(), num_blocks=150, kv_offloading_size=4.0), work)
    assert without.prefix_cache_hit_rate < 0.1 < with_host.prefix_cache_hit_rate
    assert with_host.ttft.p50 < without.ttft.p50


# -- workloads


def test_arrivals_have_the_rate_and_the_burstiness_that_were_asked_for() -> None:
    for arrivals, cv, expected in (("poisson", 1, 1), ("gamma", 3, 3), ("constant", 1, 0)):
        work = list(Workload(20_000, 5, FIXED("1"), FIXED("1"), arrivals, cv))
        gaps = [b.arrival - a.arrival for a, b in zip(work, work[1:], strict=False)]
        mean = sum(gaps) / len(gaps)
        spread = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
        assert mean == pytest.approx(1 / 5, rel=0.06)
        assert spread / mean == pytest.approx(expected, rel=0.1, abs=1e-6)


def test_phases_change_the_rate_when_they_should() -> None:
    work = list(Workload(9000, 1, FIXED("1"), FIXED("1"), "constant", phases=parse_phases("10:5,10:25,5:0")))
    counts = [
        sum(start <= request.arrival % 25 < start + 5 for request in work) for start in (0, 5, 10, 15, 20)
    ]
    per_cycle = [count / (9000 / 300) for count in counts]
    assert per_cycle == pytest.approx([25, 25, 125, 125, 0], abs=2)


def test_lengths_are_what_they_say() -> None:
    work = list(Workload(5000, 1, FIXED("lognormal:400:0.5"), FIXED("10-30"), max_model_len=4000))
    assert sum(request.prompt_len for request in work) / 5000 == pytest.approx(400, rel=0.05)
    assert {request.output_len for request in work} <= set(range(10, 31))
    assert all(request.prompt_len + request.output_len <= 4000 for request in work)


@pytest.mark.parametrize("text", ["0", "5-3", "x", "lognormal:5", "lognormal:a:1", "-4"])
def test_a_length_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        Lengths.parse(text)


def test_a_trace_is_read_in_order_of_arrival_and_a_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    lines = [
        {"arrival": 2, "prompt": 5, "output": 1},
        {"arrival": 1, "prompt": 7, "output": 2, "priority": 3},
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    assert [(r.arrival, r.prompt_len, r.priority) for r in read_trace(path)] == [(0.0, 7, 3), (1.0, 5, 0)]
    for bad in ('{"arrival": 1}', "not json", '{"arrival": 1, "prompt": 0, "output": 1}', "[1]"):
        path.write_text(json.dumps(lines[0]) + "\n" + bad)
        with pytest.raises(ConfigError, match="line 2"):
            read_trace(path)


def test_percentiles_with_counts_are_those_of_the_values_repeated() -> None:
    assert percentiles([3.0, 1.0, 2.0], [1, 5, 4]) == percentiles([1.0] * 5 + [2.0] * 4 + [3.0])
    assert percentiles([]) is None

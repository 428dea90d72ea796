"""The fit recovers known rates; the live engine is measured and replayed."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from app.bench import calibrate as calibration
from app.bench.calibrate import LORA, Case, engine_dtype, fit, live_core, probe, with_lookups
from app.bench.sim_check import Drafting, check, serve_live
from app.bench.sim_workloads import WORKLOADS, chosen
from app.bench.workload import TimedStep
from engine.config import ConfigError
from engine.core.stats import StepStats
from engine.sim.calibration import Calibration
from engine.sim.cost import CostModel, Rates, StepLoad, pairs_of
from engine.sim.hardware import get_hardware
from engine.sim.memory import Deployment
from engine.sim.models import get_model
from engine.sim.workload import Lengths, Workload

SHOP = Deployment(get_model("shop"), get_hardware("cpu"), dtype="float32", max_model_len=1024)
TRUE = Rates(
    *(4e10, 1.5e11, 1.2e10, 9e10, 4e-5, 2e-4, 8e-6),
    overlaps=False,
    adapter_bytes_per_s=2e10,
    adapter_flops=4e10,
    adapter_overhead=3e-5,
)


def known_steps() -> list[StepLoad]:
    steps = [StepLoad(rows, rows, rows, rows * context) for rows in (1, 4, 16, 32) for context in (24, 400)]
    steps += [
        StepLoad(rows, rows, rows, rows * 24, num_adapters=adapters, adapter_tokens=rows)
        for rows, adapters in ((1, 1), (8, 1), (8, 4), (32, 4))
    ]
    return steps + [
        StepLoad(1, tokens, 1, 0, pairs_of(0, tokens, None), tokens) for tokens in (6, 24, 96, 240)
    ]


def test_rates_come_back_from_the_times_that_they_make() -> None:
    cost = CostModel(SHOP, TRUE)
    planning = 4e-5
    timed = [
        TimedStep(load, planning + 3e-6 * load.num_rows, cost.seconds(load) - planning - 3e-6 * load.num_rows)
        for load in known_steps()
    ]
    found = fit(SHOP, timed)
    assert (found.model, found.dtype) == ("shop", "float32")
    for name in (
        "bytes_per_s",
        "flops",
        "attention_bytes_per_s",
        "attention_flops",
        "eager_overhead",
        "row_overhead",
        "adapter_bytes_per_s",
        "adapter_flops",
        "adapter_overhead",
    ):
        assert getattr(found.rates, name) == pytest.approx(getattr(TRUE, name), rel=0.02), name
    assert found.fit_error < 0.001


def test_one_step_in_five_that_takes_ten_times_as_long_changes_little() -> None:
    cost = CostModel(SHOP, TRUE)
    timed = [
        TimedStep(load, 4e-5, (cost.seconds(load) - 4e-5) * (10 if (index + repeat) % 5 == 0 else 1))
        for repeat in range(5)
        for index, load in enumerate(known_steps())
    ]
    fitted = CostModel(SHOP, fit(SHOP, timed).rates)
    for load in known_steps():
        assert fitted.seconds(load) == pytest.approx(cost.seconds(load), rel=0.02)


def test_the_live_engine_is_measured_and_left_as_it_was() -> None:
    with live_core("shop", "bfloat16", LORA) as core:
        timed = probe(core, [Case(2, 24), Case(0, 0, 24), Case(2, 20, 16), Case(3, 20, 0, 2)], seed=1)
        assert {step.load.is_replayed for step in timed} == {True, False}
        assert {(step.load.num_adapters, step.load.adapter_tokens) for step in timed} == {(0, 0), (2, 3)}
        assert all(step.planning > 0 and step.execute > 0 for step in timed)
        assert not core.has_unfinished() and "schedule" not in vars(core.scheduler)
        work = list(Workload(6, 50, Lengths(10, 30), Lengths(3, 6)))
        report = serve_live(core, work, time.thread_time)
        assert report.num_finished == 6
        assert report.output_tokens == sum(request.output_len for request in work)


def test_a_check_compares_the_same_work_in_both_worlds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Test the mechanism; `prep sim check` measures the error."""
    monkeypatch.setenv("PREP_HOME", str(tmp_path))
    monkeypatch.setattr(
        calibration, "SMALL_MODEL", [Case(1, 24), Case(4, 200), Case(0, 0, 24), Case(0, 0, 96)]
    )
    small = [replace(each, num_requests=4) for each in chosen(["bursts", "n-gram drafts"])]
    told: list[str] = []
    saved = calibration.calibrate(told.append, "shop", "bfloat16", rounds=1)
    report = check(told.append, "shop", "bfloat16", small, rounds=1, saved=saved)
    names = [figure.name for figure in report.outcomes[0].figures]
    assert names == ["output tokens/s", "mean step", "TTFT p50", "TPOT p50", "E2E p90"]
    assert all(figure.live[0] > 0 and figure.simulated[0] > 0 for figure in report.figures)
    assert [outcome.drafting is None for outcome in report.outcomes] == [True, False]
    assert any("1 of 2, bursts: round 1 of 1, about" in each for each in told)


def test_an_interrupted_check_goes_on_with_the_workloads_that_are_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PREP_HOME", str(tmp_path))
    small = [replace(each, num_requests=3) for each in chosen(["bursts", "mixed lengths"])]
    saved = Calibration("shop", "float32", TRUE, 1, 10, 0.05)

    def interrupt(text: str) -> None:
        if text.startswith("2 of 2"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check(interrupt, "shop", "float32", small, rounds=1, saved=saved)
    told: list[str] = []
    with pytest.raises(ConfigError, match="nothing to resume in .*: its check has other settings"):
        check(told.append, "shop", "float32", small[:1], rounds=1, saved=saved, resume=True)
    with pytest.raises(ConfigError, match="its check has other settings"):
        check(told.append, "shop", "float32", small, rounds=1, resume=True)
    report = check(told.append, "shop", "float32", small, rounds=1, saved=saved, resume=True)
    assert all(each.startswith("1 of 1, mixed lengths") for each in told)
    assert [outcome.workload for outcome in report.outcomes] == ["bursts", "mixed lengths"]
    assert report.calibration == saved


def test_every_workload_asks_for_what_its_name_says() -> None:
    by_name = {workload.name: workload.requests(workload.num_requests, 100.0) for workload in WORKLOADS}
    assert len(by_name) == 12
    assert len({request.arrival for request in by_name["bursts"]}) == 6
    assert {request.adapter for request in by_name["adapters"]} == {"0", "1", "2", "3"}
    assert {request.priority for request in by_name["priorities"]} == {0, 1, 2}
    assert {request.prefix_id for request in by_name["shared prefixes"]} == {0, 1, 2, 3}


def test_a_drafters_success_is_counted_by_rows_and_by_drafts() -> None:
    steps = [
        StepStats(num_decode_tokens=10, num_drafts=2, num_draft_tokens=4, num_accepted_tokens=3,
                  num_accepted_tokens_per_pos=[2, 1]),
        StepStats(num_decode_tokens=2),
    ]  # fmt: skip
    assert Drafting.measured(steps) == Drafting(2, coverage=2 / 8, acceptance=3 / 4)


def test_a_lookup_costs_what_steps_take_beyond_the_fit() -> None:
    cost = CostModel(SHOP, TRUE)
    found = Calibration("shop", "float32", TRUE, 1, 10, 0.05)
    timed = [
        TimedStep(load, 0.0, cost.seconds(load) + 2e-5 * load.num_rows)
        for load in (StepLoad(4, 4, 4, 96), StepLoad(4, 16, 16, 0, 400, 100))
    ]
    assert with_lookups(found, SHOP, timed).rates.lookup_overhead == pytest.approx(2e-5)


def test_only_what_a_cpu_runs_can_be_calibrated() -> None:
    with pytest.raises(ConfigError, match="not among the models"), live_core("llama-3-8b"):
        pass
    with pytest.raises(ConfigError, match="steps in fp8 are not measured on a CPU; choose one of float32"):
        engine_dtype("fp8")
    assert engine_dtype("bf16") == {"dtype": "bfloat16"}

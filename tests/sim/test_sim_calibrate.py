"""The fit recovers known rates; the live engine is measured and replayed."""

from __future__ import annotations

import time

import pytest

from app.bench import calibrate as calibration
from app.bench.calibrate import fit, live_core, probe
from app.bench.sim_check import check, serve_live
from app.bench.workload import TimedStep
from engine.config import ConfigError
from engine.sim.cost import CostModel, Rates, StepLoad, pairs_of
from engine.sim.hardware import get_hardware
from engine.sim.memory import Deployment
from engine.sim.models import get_model
from engine.sim.workload import Lengths, Workload

SHOP = Deployment(get_model("shop"), get_hardware("cpu"), dtype="float32", max_model_len=1024)
TRUE = Rates(4e10, 1.5e11, 1.2e10, 9e10, 4e-5, 2e-4, 8e-6, overlaps=False)


def known_steps() -> list[StepLoad]:
    steps = [StepLoad(rows, rows, rows, rows * context) for rows in (1, 4, 16, 32) for context in (24, 400)]
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
    found = fit("shop", SHOP, timed)
    for name in (
        "bytes_per_s",
        "flops",
        "attention_bytes_per_s",
        "attention_flops",
        "eager_overhead",
        "row_overhead",
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
    fitted = CostModel(SHOP, fit("shop", SHOP, timed).rates)
    for load in known_steps():
        assert fitted.seconds(load) == pytest.approx(cost.seconds(load), rel=0.02)


def test_the_live_engine_is_measured_and_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "SMALL_MODEL", [(2, 24, 0), (0, 0, 24), (2, 20, 16)])
    with live_core("shop") as core:
        timed = probe(core, 4_656_384, seed=1)
        assert {step.load.is_decode for step in timed} == {True, False}
        assert all(step.planning > 0 and step.execute > 0 for step in timed)
        assert not core.has_unfinished() and "schedule" not in vars(core.scheduler)
        work = list(Workload(6, 50, Lengths(10, 30), Lengths(3, 6)))
        report = serve_live(core, work, time.thread_time)
        assert report.num_finished == 6
        assert report.output_tokens == sum(request.output_len for request in work)


def test_a_check_compares_the_same_work_in_both_worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test the mechanism; `prep sim check` measures the error."""
    monkeypatch.setattr(
        calibration, "SMALL_MODEL", [(1, 24, 0), (4, 24, 0), (4, 200, 0), (0, 0, 24), (0, 0, 96)]
    )
    report = check(lambda text: None, "shop", num_requests=6, rounds=1)
    names = [figure.name for figure in report.figures]
    assert names[:3] == ["mean step", "TTFT p50", "TTFT p90"] and all(
        figure.live > 0 for figure in report.figures
    )
    assert report.passed == all(abs(figure.error) <= figure.bar for figure in report.figures if figure.bar)


def test_a_model_without_a_shape_cannot_be_calibrated() -> None:
    with pytest.raises(ConfigError, match="no shape for"), live_core("somewhere/else"):
        pass

"""The view Plan of the page Capacity: memory bar, latencies against load, remedies."""

from __future__ import annotations

import re
from dataclasses import asdict, replace

import pytest

from app.debugger.capacity.figures import work_out
from app.debugger.capacity.load_curve import load_curves
from app.debugger.capacity.memory_bar import bar, parts
from app.debugger.capacity.remedies import missed, remedies, short_by
from app.debugger.capacity.scenario import Scenario
from engine.config import ConfigError
from engine.sim.memory import DoesNotFit, divide_memory, plan_memory
from engine.sim.steady_state import Replica
from tests.app.debugger.pages import Opener, said

FITS = [
    Scenario(),
    Scenario(model="llama-3-70b", tp=4, kv_cache_dtype="fp8"),
    Scenario(model="mixtral-8x7b", gpu="h200"),
    Scenario(gpu="l4", rate=1),
]
MISSES = [
    Scenario(model="llama-3-70b", rate=20),
    Scenario(model="llama-3.1-405b", rate=50),
    Scenario(replicas=2, rate=50, tpot_ms=10.0),
    Scenario(replicas=1, rate=50),
    Scenario(model="llama-3-70b", tp=2, rate=5, ttft_ms=50.0),
    Scenario(model="llama-3.1-8b", gpu="l4", max_model_len=131_072, rate=1, tpot_ms=200.0),
]


@pytest.mark.parametrize("scenario", FITS, ids=str)
def test_the_parts_of_the_bar_add_up_to_the_memory_of_the_gpu(scenario: Scenario) -> None:
    found = work_out(scenario)
    assert sum(part.num_bytes for part in parts(found)) == pytest.approx(
        scenario.deployment.hardware.memory_bytes
    )
    by_name = {part.name: part.num_bytes for part in parts(found)}
    budget = plan_memory(scenario.deployment).kv_budget
    assert by_name["KV in use"] + by_name["KV free"] == pytest.approx(budget)
    assert "does not fit" not in bar(found) and "missing" not in bar(found)


@pytest.mark.parametrize("scenario", [miss for miss in MISSES if work_out(miss).problem], ids=str)
def test_a_bar_that_is_too_long_shows_what_the_engine_says_is_missing(scenario: Scenario) -> None:
    found = work_out(scenario)
    with pytest.raises(DoesNotFit) as refusal:
        plan_memory(scenario.deployment)
    *needed, missing = parts(found)
    assert missing.num_bytes == pytest.approx(refusal.value.short_by) and missing.kind == "missing"
    usable = divide_memory(scenario.deployment).usable
    assert sum(part.num_bytes for part in needed) == pytest.approx(usable + missing.num_bytes)
    widths = [float(width) for width in re.findall(r"<span class='\w+' style='width:([\d.]+)%'", bar(found))]
    assert sum(widths) <= 100.01 and "short by" in bar(found)


@pytest.mark.parametrize(
    "scenario", [*FITS, *(miss for miss in MISSES if not work_out(miss).problem)], ids=str
)
def test_the_curves_are_the_steady_state_and_the_limits_are_met_exactly_up_to_the_named_rate(
    scenario: Scenario,
) -> None:
    found = work_out(scenario)
    curves, count = load_curves(found), found.value("replicas")
    replica = Replica(scenario, found.value("batch_limit"))
    assert curves.most == pytest.approx(count * found.value("most"))
    for index in (0, 20, 59):
        state = replica.at(curves.ttft[index][0] / count)
        assert curves.ttft[index][1] == pytest.approx(1000 * state.ttft, rel=1e-3)
        assert curves.tpot[index][1] == pytest.approx(1000 * state.step, rel=1e-3)
    for within, points, limit in (
        (curves.within_ttft, curves.ttft, scenario.ttft_ms),
        (curves.within_tpot, curves.tpot, scenario.tpot_ms),
    ):
        assert all(value <= limit for rate, value in points if rate < within * 0.999)
        assert all(value > limit for rate, value in points if rate > within * 1.02)


def test_the_plans_load_is_on_the_curve() -> None:
    found = work_out(Scenario(rate=18))
    curves = load_curves(found)
    below = max(point for point in curves.tpot if point[0] <= 18)
    above = min(point for point in curves.tpot if point[0] >= 18)
    assert below[1] <= 1000 * found.value("tpot") <= above[1]


@pytest.mark.parametrize("scenario", MISSES, ids=str)
def test_every_remedy_has_the_effect_that_it_names(scenario: Scenario) -> None:
    before = work_out(scenario)
    offered = remedies(before)
    assert missed(before) and offered
    for remedy in offered:
        changed = {
            name for name, value in asdict(remedy.scenario).items() if value != getattr(scenario, name)
        }
        assert len(changed - {"price"}) == 1, "one change each"
        after = work_out(remedy.scenario)
        assert remedy.solves == (not missed(after))
        if after.problem:
            assert short_by(after) < short_by(before)
            continue
        assert after.figures["per_mtok"].shown() in remedy.effect
        if "TTFT" in remedy.effect:
            assert after.figures["ttft"].shown() in remedy.effect
        if remedy.solves and not before.problem:
            assert "misses" not in remedy.effect
    solving = [work_out(remedy.scenario).value("per_mtok") for remedy in offered if remedy.solves]
    assert solving == sorted(solving), "the cheapest first"
    assert [remedy.solves for remedy in offered] == sorted(
        (remedy.solves for remedy in offered), reverse=True
    )


def test_a_plan_that_meets_everything_needs_no_remedy() -> None:
    assert not missed(work_out(Scenario())) and not remedies(work_out(Scenario()))


def test_fp8_kv_doubles_the_blocks_and_a_shorter_context_is_offered_only_if_it_helps() -> None:
    small = replace(MISSES[-1], max_model_len=0)
    assert not work_out(small).problem, "a sequence of prompt and output fits"
    [shorter] = [remedy for remedy in remedies(work_out(MISSES[-1])) if "max_model_len" in remedy.title]
    assert shorter.solves and shorter.scenario.max_model_len < 131_072
    busy = remedies(work_out(Scenario(replicas=2, rate=50, tpot_ms=10.0)))
    assert "2x the blocks" in next(remedy.effect for remedy in busy if remedy.title == "fp8 KV cache")
    assert not [remedy for remedy in busy if "max_model_len" in remedy.title]


def test_a_context_shorter_than_a_request_is_refused_with_a_way_out() -> None:
    with pytest.raises(ConfigError, match="raise max_model_len"):
        work_out(Scenario(prompt=4000, max_model_len=2048))


def test_a_remedy_is_applied_by_a_click_and_taken_back(open_page: Opener) -> None:
    app = open_page("capacity", model="llama-3-70b", rate=20)
    assert "does not fit" in app.error[0].value and "What helps" in said(app)
    app.button(key="capacity remedy 0").click().run()
    assert not app.exception and not app.error and app.selectbox(key="capacity:gpu").value == "b200"
    assert app.query_params["gpu"] == "b200" and "short by" not in said(app)
    app.button(key="capacity undo button").click().run()
    assert app.selectbox(key="capacity:gpu").value == "h100" and "does not fit" in app.error[0].value
    assert not [button for button in app.button if button.key == "capacity undo button"]

"""Whiteboard formulas against each other and against the simulation."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from app.cli.main import app
from engine.config import ConfigError
from engine.sim.hardware import LINKS, get_hardware
from engine.sim.memory import Deployment
from engine.sim.models import get_model
from engine.sim.run import make_engine, simulate
from engine.sim.sizing import latency_of, size, slo_budget, swap_or_recompute
from engine.sim.workload import Lengths, Workload

DEPLOYMENT = Deployment(get_model("llama-3-8b"), get_hardware("h100"))


def test_a_sizing_obeys_littles_law_and_its_own_parts() -> None:
    found = size(DEPLOYMENT, rate=1000, prompt=1000, output=200)
    assert found.concurrent_decodes == pytest.approx(1000 * 200 * found.tpot)
    assert found.decode_replicas * 0.7 * found.batch == pytest.approx(found.concurrent_decodes)
    assert found.kv_bytes_per_s == 1000 * 1000 * 131_072
    assert found.gpus == math.ceil(found.replicas)


def test_ten_times_the_rate_needs_ten_times_the_replicas() -> None:
    one, ten = (size(DEPLOYMENT, rate=rate, prompt=800, output=100).replicas for rate in (100, 1000))
    assert ten == pytest.approx(10 * one)


def test_a_replica_serves_the_rate_that_the_sums_give_it() -> None:
    """The simulated throughput of a full batch is near the formula's."""
    found = size(DEPLOYMENT, rate=1.0, prompt=500, output=200, utilisation=1.0)
    alone = 1 / found.replicas
    report = simulate(
        make_engine(DEPLOYMENT), Workload(1500, float("inf"), Lengths(500, 500), Lengths(200, 200))
    )
    assert report.requests_per_s == pytest.approx(alone, rel=0.25)


def test_a_tighter_tpot_means_smaller_batches_and_more_gpus() -> None:
    loose, tight = (
        size(DEPLOYMENT, rate=500, prompt=1000, output=200, tpot_limit=ms / 1000) for ms in (30, 9)
    )
    assert tight.batch < loose.batch and tight.tpot <= 0.009 and tight.decode_replicas > loose.decode_replicas


def test_a_tpot_below_the_floor_is_refused_with_the_floor() -> None:
    with pytest.raises(ConfigError, match="one request alone takes .* ms per token"):
        size(DEPLOYMENT, rate=1, prompt=100, output=10, tpot_limit=0.001)


@pytest.mark.parametrize(
    ("ttft", "tpot", "limit", "hops", "tokens"),
    [
        (0.2, 0.015, 2.0, 0.0, 121),  # P50 TTFT 200 ms, 15 ms a token, 2 s: 121 tokens, not hundreds
        (0.2, 0.05, 0.5, 0.0, 7),
        (0.18, 0.015, 0.5, 0.024, 20),
        (0.6, 0.015, 0.5, 0.0, 0),
    ],
)
def test_an_slo_leaves_room_for_so_many_tokens(
    ttft: float, tpot: float, limit: float, hops: float, tokens: int
) -> None:
    assert slo_budget(ttft=ttft, tpot=tpot, limit=limit, hops=hops).tokens == tokens
    if tokens:
        assert latency_of(tokens, ttft=ttft, tpot=tpot, hops=hops) <= limit + 1e-9
        assert latency_of(tokens + 1, ttft=ttft, tpot=tpot, hops=hops) > limit


def test_swapping_copies_the_bytes_twice() -> None:
    link = LINKS["pcie4"]
    found = swap_or_recompute(DEPLOYMENT, 4000, link=link)
    assert found.swap_seconds == pytest.approx(2 * (link.latency_s + 4000 * 131_072 / link.bytes_per_s))


def test_a_faster_link_makes_swapping_win_sooner() -> None:
    links = [replace(LINKS["pcie4"], bytes_per_s=rate) for rate in (5e9, 10e9, 50e9)]
    slow, middle, fast = (swap_or_recompute(DEPLOYMENT, 2000, link=link) for link in links)
    assert (slow.cheaper, fast.cheaper) == ("recompute", "swap")
    assert fast.break_even == 16 and middle.break_even is not None and middle.break_even > 16
    assert slow.break_even is None or slow.break_even > middle.break_even


@pytest.mark.parametrize("bad", [{"rate": 0}, {"prompt": 0}, {"utilisation": 1.5}])
def test_sums_without_a_meaning_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        size(DEPLOYMENT, **{"rate": 1, "prompt": 10, "output": 10, **bad})


def test_the_command_prints_the_same_for_people_and_scripts() -> None:
    arguments = ["sim", "size", "--rate", "100", "--tpot", "15", "--slo", "1000", "--hops", "24"]
    told = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert told["slo"]["tokens"] > 0
    page = CliRunner().invoke(app, arguments).stdout
    assert f"{told['sizing']['gpus']:,}" in page and "tokens within 1000 ms" in page

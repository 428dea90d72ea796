"""Plans: quantities, checks of the file, money, failures, the command for vLLM."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from engine.config import ConfigError
from engine.sim.memory import make_deployment
from engine.sim.plan.money import Bill
from engine.sim.plan.plan_file import Plan
from engine.sim.plan.quantity import KINDS, parse, parse_money
from engine.sim.plan.regions import light_rtt, overload_share, spread
from engine.sim.plan.serve_command import arguments_of, check_vllm, extract, vllm_options

PLAN: dict[str, Any] = {
    "model": "llama-3-8b",
    "hardware": {"gpu": "h100"},
    "traffic": {"rate": "10 req/s", "prompt": 800, "output": "200 tokens"},
}


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("10 req/s", "rate", 10), ("600 requests/min", "rate", 10), ("1.728M req/day", "rate", 20),
        ("200 ms", "time", 0.2), ("1.5 min", "time", 90), ("6,500 km", "distance", 6500), ("2 GB/s", "speed", 2e9),
        ("1GiB/s", "speed", 2**30), ("70 %", "share", 0.7), (0.7, "share", 0.7), ("1,000", "tokens", 1000),
        ("2k tokens", "tokens", 2000), ("1e3 rps", "rate", 1000),
    ],
)  # fmt: skip
def test_a_quantity_is_its_number_times_its_unit(text: object, kind: str, value: float) -> None:
    assert parse(text, kind) == pytest.approx(value)


def test_money_keeps_its_currency() -> None:
    for text, amount, currency in (("EUR 2.50/h", 2.5, "EUR"), ("$3/h", 3, "$"), ("€ 1,000 /h", 1000, "EUR")):
        money = parse_money(text, "per hour")
        assert (money.amount, money.currency) == (amount, currency)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "text", ["", "fast", "-5 req/s", "-1", "1e30 km", "12 parsecs", True, None, [3], "3,00 ms"]
)
def test_what_is_not_a_quantity_is_refused_with_an_example(kind: str, text: object) -> None:
    with pytest.raises(ValueError, match=r"write|unit|bounds|such as"):
        parse(text, kind)


def changed(**parts: Any) -> Plan:
    return Plan.model_validate(PLAN | parts)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"hardware": {"gpu": "h10"}}, "did you mean 'h100'"),
        ({"traffic": PLAN["traffic"] | {"rate": "-1 req/s"}}, "out of bounds"),
        ({"traffic": PLAN["traffic"] | {"day": [1.0] * 23}}, "24 numbers"),
        ({"regions": [{"name": "a", "users": "60 %"}]}, "add up to 60%"),
        ({"price": {"gpu": "$3/h", "people": "EUR 9/month"}}, "mix"),
        ({"regions": [{"name": "a", "users": 0.5}, {"name": "b", "users": 0.5}]}, "links lacks"),
        ({"failure": {"domain": "zone", "down": 1}}, "one must survive"),
    ],
)  # fmt: skip
def test_an_impossible_plan_is_refused(parts: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        changed(**parts)


def test_an_rtt_faster_than_light_is_refused() -> None:
    regions = [{"name": "a", "users": 0.5}, {"name": "b", "users": 0.5}]
    link = {"between": ["a", "b"], "distance": "6,000 km", "rtt": f"{1000 * light_rtt(6000) - 1} ms"}
    with pytest.raises(ValidationError, match="impossible"):
        changed(regions=regions, links=[link])
    changed(regions=regions, links=[link | {"rtt": f"{1000 * light_rtt(6000) + 1} ms"}])


def test_a_day_keeps_the_mean_rate() -> None:
    for day in ("flat", "office", "evening", [float(hour) for hour in range(24)]):
        hours = changed(traffic=PLAN["traffic"] | {"day": day}).traffic.hours
        assert sum(hours) / 24 == pytest.approx(10)


@pytest.mark.parametrize("fixed", [0.0, 500.0, 20_000.0])
@pytest.mark.parametrize("price", [0.0005, 0.001, 0.0031, 0.01])
def test_break_even_is_the_first_volume_at_which_the_own_fleet_costs_no_more(
    fixed: float, price: float
) -> None:
    bill = Bill(2000.0, fixed, price, 700_000.0)
    even, stays = bill.break_even(), bill.stays_cheaper()
    grid = [each * 10_000.0 for each in range(1, 40_000)]
    cheaper = [bill.own(each) <= bill.managed(each) + 1e-6 for each in grid]
    if even is None or stays is None:
        assert not any(cheaper)
        return
    first = grid[cheaper.index(True)]
    assert first - 10_000 <= even + 1e-6 and even <= first + 1e-6
    last_dearer = max((each for each, own in zip(grid, cheaper, strict=True) if not own), default=0.0)
    assert last_dearer <= stays + 1e-6 <= last_dearer + 10_000 + 1e-6


def test_what_survives_holds_the_peak() -> None:
    for needed, domains, down in product(range(1, 60, 7), range(2, 7), range(2)):
        total = spread(needed, domains, down)
        assert total % domains == 0 and total // domains * (domains - down) >= needed
        assert (total // domains - 1) * (domains - down) < needed


def test_no_number_of_domains_beats_the_common_cause() -> None:
    shares = [overload_share(count, 1, 0.01, 0.05) for count in (2, 3, 5)]
    assert all(share >= 0.05 * 0.01 for share in shares)
    assert overload_share(2, 1, 0.01, 0.0) == pytest.approx(0.01**2)
    assert math.isclose(overload_share(3, 0, 0.01, 0.0), 1 - 0.99**3)


def test_the_command_has_only_options_of_vllm() -> None:
    for dtype, kv in (("bfloat16", "auto"), ("fp8", "fp8"), ("int4", "auto")):
        words = arguments_of(
            make_deployment(model="llama-3-70b", gpu="h100", tp=4, dtype=dtype, kv_cache_dtype=kv)
        )
        assert {word for word in words if word.startswith("--")} <= vllm_options()[1]
    with pytest.raises(ConfigError, match="did you mean '--max-num-seqs'"):
        check_vllm(["--max-num-seq", "4"])


def test_options_are_read_from_source(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "entrypoints/launchers").mkdir(parents=True)
    (tmp_path / "engine/arg_utils.py").write_text('group.add_argument("--model-x", "-m", **kwargs)\n')
    (tmp_path / "entrypoints/launchers/cli_args.py").write_text(
        "class FrontendArgs:\n    api_key: str = ''\n"
    )
    assert extract(tmp_path) == ["--api-key", "--model-x"]

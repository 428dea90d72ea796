"""The watch of a canary: its false alarms and its power by simulation, and the rollback in a gateway."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from engine.config import ConfigError
from engine.gateway.canary import CanaryWatch, Look, Outcomes, look
from engine.gateway.config import WatchSettings, read_settings
from tests.gateway.test_gateway import answer, ask, failing, gateway


def rollback(
    rng: Random, settings: WatchSettings, errors: float, slower: float, num: int, base_errors: float = 0.02
) -> Look | None:
    """Simulate `num` requests of each side in turn; return the look that finds the canary worse."""
    watch = CanaryWatch(settings)
    for _ in range(num):
        for is_canary in (False, True):
            failed = rng.random() < (errors if is_canary else base_errors)
            latency = rng.lognormvariate(-2, 0.6) * (slower if is_canary else 1)
            found = watch.add(is_canary, failed, latency)
            if found is not None and found.is_worse:
                return found
    return None


def test_a_healthy_canary_is_rolled_back_no_more_often_than_alpha_says() -> None:
    rng, settings = Random(11), WatchSettings(alpha=0.2, slower=0.0)
    runs = 200
    alarms = sum(rollback(rng, settings, 0.02, 1.0, 850) is not None for _ in range(runs))
    assert alarms / runs <= 0.2 + 3 * math.sqrt(0.16 / runs)


def test_the_stated_number_of_requests_finds_the_difference_worth_finding() -> None:
    rng, settings = Random(5), WatchSettings(first_look=1000, detect=0.03)
    base = Outcomes(1000, 20)
    num = look(1, base, Outcomes(1000, 20), settings).requests_needed
    assert num < 2000, "the first look must come late enough for the claim"
    late = WatchSettings(first_look=num, detect=0.03)
    alarms = sum(rollback(rng, late, 0.05, 1.0, num) is not None for _ in range(120))
    assert alarms / 120 >= 0.8 - 3 * math.sqrt(0.16 / 120)


def test_a_slower_canary_is_found_by_its_quantile_and_one_within_the_allowance_is_not() -> None:
    found = rollback(Random(2), WatchSettings(), 0.02, 3.0, 2000)
    assert found is not None and "p90 latency is at least" in found.reason
    assert found.canary_latency_at_least > 1.25 * found.base_latency_at_most
    assert rollback(Random(2), WatchSettings(), 0.02, 1.2, 2000) is None


def test_looks_come_at_each_doubling_of_the_smaller_side_with_a_smaller_alpha() -> None:
    watch = CanaryWatch(WatchSettings(first_look=10, alpha=0.06))
    for _ in range(1000):
        assert watch.add(False, False, 0.1) is None, "without canary requests there is nothing to compare"
    looks = [found for _ in range(90) if (found := watch.add(True, False, 0.1)) is not None]
    assert [look.canary_total for look in looks] == [10, 20, 40, 80]
    assert [look.alpha for look in looks] == pytest.approx([0.03, 0.01, 0.005, 0.003])
    assert watch.last is looks[-1] and "nothing shows that the canary is worse" in watch.last.sentence()
    watch.restart()
    assert watch.canary.total == 0 and watch.add(True, True, None) is None


def canary(share: float, **watch: Any) -> dict[str, Any]:
    return {
        "backends": [
            {"name": "a", "url": "http://a"}, {"name": "b", "url": "http://b", "version": "new"},
        ],
        "canary": {"version": "new", "share": share, "watch": watch},
        "retries": {"most": 1, "budget": 1.0},
        "breaker": {"failures": 1000},
    }  # fmt: skip


def test_a_failing_canary_loses_its_users_by_itself_and_no_client_sees_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client, made, got = gateway({"a": answer("old"), "b": failing(503)}, **canary(0.5, first_look=10))
    with caplog.at_level(logging.WARNING, logger="engine.gateway.proxy"):
        for number in range(100):
            assert ask(client, user=f"user-{number}").json()["choices"][0]["text"] == "old"
    state = client.get("/gateway/state").json()
    assert state["canary"]["share"] == 0 and state["canary_look"]["is_worse"]
    assert "error rate is higher by at least" in state["canary_look"]["sentence"]
    [line] = [record.getMessage() for record in caplog.records if "rolled back" in record.getMessage()]
    assert line.startswith("canary new is rolled back from 0.5: look 1 at alpha 0.0250")
    assert "gateway_canary_rollbacks_total 1.0" in client.get("/metrics").text
    asked = [host for host, _ in got].count("b")
    assert asked == 10, "the canary is not asked again"
    assert client.post("/gateway/canary", json={"share": 0.5}).status_code == 200
    assert made.canary_watch is not None and made.canary_watch.canary.total == 0, "a new trial begins anew"


def test_a_healthy_canary_keeps_its_users_and_client_errors_of_both_sides_do_not_matter() -> None:
    def often_wrong(request: httpx.Request) -> httpx.Response:
        return (failing(400) if b'"stop"' in request.content else answer("x"))(request)

    client, made, _ = gateway({"a": often_wrong, "b": often_wrong}, **canary(0.5, first_look=10))
    for number in range(100):
        ask(client, user=f"user-{number}", **({"stop": "."} if number % 3 == 0 else {}))
    assert client.get("/gateway/state").json()["canary"]["share"] == 0.5
    assert made.canary_watch is not None and made.canary_watch.last is not None
    assert made.canary_watch.last.canary_failed > 0 and not made.canary_watch.last.is_worse


def test_settings_that_cannot_find_what_they_allow_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(
        "backends:\n  - {name: a, url: http://a, version: v2}\n"
        "canary:\n  version: v2\n  share: 0.1\n  watch: {more_errors: 0.05, detect: 0.02}\n"
    )
    with pytest.raises(ConfigError, match=r"gateway.yaml:6: canary.watch: detect must be above more_errors"):
        read_settings(file)

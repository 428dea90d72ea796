"""`prep bench startup --served`: the state of a server decides when a request gets its first token."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.bench.first_served import FirstServed, measure
from engine.fleet.folder import running


def test_states_are_listed_from_the_fastest_to_the_slowest() -> None:
    report = FirstServed("shop", {"cold": [5.0, 4.0, 9.0], "ready": [0.1], "asleep": [2.0, 3.0]})
    assert list(report.medians.items()) == [("ready", 0.1), ("asleep", 2.5), ("cold", 5.0)]


@pytest.mark.slow
def test_a_warm_pool_and_a_sleeping_engine_answer_before_a_cold_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREP_HOME", str(tmp_path))
    medians = measure(lambda words: None, "shop", runs=1).medians
    assert sorted(medians) == ["asleep", "cold", "ready", "warm pool"]
    assert list(medians)[-1] == "cold" and medians["warm pool"] < medians["cold"] / 2
    assert not running()

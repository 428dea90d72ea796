"""`prep bench speculation`: every engine answers the same requests, and the figures add up."""

from __future__ import annotations

import pytest

from app.bench.speculation import Result, SpeculationReport, configs, measure
from engine.config import ConfigError


def test_engines_take_turns_on_the_same_requests_and_say_the_same() -> None:
    report = measure(
        lambda text: None,
        "shop",
        {},
        configs(["ngram"], 3),
        workloads=["repetitive", "free"],
        batch_sizes=[1, 2],
        requests=3,
    )
    assert [(result.workload, result.batch_size) for result in report.results] == [
        ("repetitive", 1),
        ("repetitive", 2),
        ("free", 1),
        ("free", 2),
    ]
    for result in report.results:
        assert result.is_identical and 0 < result.acceptance <= 1
        assert result.speedup == pytest.approx(result.tokens_per_s / result.plain_tokens_per_s)
        assert 1 < result.tokens_per_step <= 4 and len(result.acceptance_per_pos) <= 3
        assert result.acceptance_per_pos == sorted(result.acceptance_per_pos, reverse=True)


def test_the_break_even_is_the_smallest_batch_that_loses() -> None:
    def result(size: int, speedup: float) -> Result:
        return Result("json", "ngram", size, 1.0, speedup, speedup, 1.0, 0.5, [], True)

    report = SpeculationReport("shop", 4, [result(1, 1.5), result(8, 0.9), result(64, 0.5)])
    assert report.break_even("json", "ngram") == 8
    assert report.break_even("free", "ngram") is None


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is no speculative method .hydra."):
        configs(["hydra"], 4)

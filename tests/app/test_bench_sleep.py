"""`prep bench sleep`: two models that take turns on one machine."""

from __future__ import annotations

import pytest

from app.bench.sleep import measure


@pytest.mark.slow
def test_sleep_frees_the_memory_of_a_process_and_the_other_model_answers() -> None:
    report = measure(lambda words: None, ["shop", "shop-draft"], {"max_model_len": 256}, rounds=1)
    assert [each.model for each in report.models] == ["shop", "shop-draft"] and report.rounds == 1
    for each in report.models:
        assert each.freed_bytes > 50_000_000  # torch alone takes more
        assert min(each.sleep, each.wake, each.first_token) > 0
    assert report.switch >= min(each.wake for each in report.models)

"""`prep bench sleep`: two models that take turns on one machine."""

from __future__ import annotations

import pytest

from app.bench.sleep import measure


@pytest.mark.slow
def test_sleep_frees_the_memory_of_a_process_and_the_other_model_answers() -> None:
    report = measure(lambda words: None, ["shop", "shop-draft"], {"max_model_len": 256}, rounds=1)
    assert [model.model for model in report.models] == ["shop", "shop-draft"] and report.rounds == 1
    for model in report.models:
        assert model.freed_bytes > 50_000_000  # torch alone takes more
        assert min(model.sleep, model.wake, model.first_token) > 0
    assert report.switch >= min(model.wake for model in report.models)

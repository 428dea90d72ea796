"""`prep top`: what is read between two scrapes."""

from __future__ import annotations

from math import inf

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from app.cli.main import app
from app.cli.top import table
from engine.server.scrape import Activity, Scrape, ScrapeError, base_of, quantile


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [
        ({1.0: 10, 2.0: 10, inf: 10}, 0.5, 0.5),
        ({1.0: 0, 2.0: 10, inf: 10}, 0.5, 1.5),
        ({1.0: 5, 2.0: 10, inf: 10}, 0.9, 1.8),
        ({1.0: 5, 2.0: 5, inf: 10}, 0.9, 2.0),
        ({1.0: 0, inf: 0}, 0.5, None),
        ({}, 0.5, None),
    ],
)
def test_quantiles_are_those_of_prometheus(
    counts: dict[float, float], share: float, expected: float | None
) -> None:
    assert quantile(counts, share) == (None if expected is None else pytest.approx(expected))


def test_rates_count_what_came_between_two_scrapes(client: TestClient) -> None:
    before = Scrape.of(client.get("/metrics").text, when=10.0)
    for _ in range(3):
        body = {"prompt": "Hello there, how are you today?", "max_tokens": 5, "ignore_eos": True}
        assert client.post("/v1/completions", json=body).status_code == 200
    activity = Activity.between(before, Scrape.of(client.get("/metrics").text, when=12.0))
    assert activity.requests_per_s == 1.5 and activity.output_tokens_per_s == 7.5
    assert activity.totals["output_tokens"] == 15 and activity.running == 0
    assert activity.ttft_p50 is not None and activity.itl_p99 is not None
    assert table(activity).row_count >= 11
    quiet = Activity.between(*[Scrape.of(client.get("/metrics").text)] * 2)
    assert quiet.ttft_p50 is None and quiet.prefix_hit_rate is None
    restarted = Activity.between(
        Scrape.of("vllm:prompt_tokens_total 900", when=0.0), Scrape.of("vllm:prompt_tokens_total 6", when=2.0)
    )
    assert restarted.prompt_tokens_per_s == 3.0


def test_a_restart_begins_every_counter_and_histogram_at_0() -> None:
    old = "vllm:prompt_tokens_total 900\nvllm:generation_tokens_total 5\n" + histogram(
        "time_to_first_token_seconds", 4, 40
    )
    new = "vllm:prompt_tokens_total 6\nvllm:generation_tokens_total 8\n" + histogram(
        "time_to_first_token_seconds", 0, 9
    )
    activity = Activity.between(Scrape.of(old, when=0.0), Scrape.of(new, when=2.0))
    assert (activity.prompt_tokens_per_s, activity.output_tokens_per_s) == (3.0, 4.0)
    assert activity.ttft_p50 == 1.5, "9 observations between 1 and 2 s"


def histogram(name: str, below_1: int, below_2: int) -> str:
    pairs = (("1.0", below_1), ("2.0", below_2), ("+Inf", below_2))
    lines = [f'vllm:{name}_bucket{{le="{bound}"}} {count}' for bound, count in pairs]
    return "\n".join([f"# TYPE vllm:{name} histogram", *lines, f"vllm:{name}_count {below_2}", ""])


def test_engines_add_up_and_shares_are_means() -> None:
    lines = [
        f'vllm:{name}{{engine="{engine}",model_name="shop"}} {value}'
        for name in ("kv_cache_usage_perc", "num_requests_running")
        for engine, value in enumerate((0.5, 1.0))
    ]
    scrape = Scrape.of("\n".join(lines))
    assert scrape.values == {"kv_cache_usage_perc": 0.75, "num_requests_running": 1.5}
    assert scrape.models == ("shop",)


def test_failures_are_told_from_rejections() -> None:
    text = (
        'vllm:request_success_total{finished_reason="stop"} 4\nvllm:request_success_total{finished_reason="error"} 2\n'
        'vllm:admission_rejections_total{reason="max_num_queued_reqs"} 6\n'
    )
    nothing = Scrape.of("vllm:admission_rejections_total 0", when=0.0)
    activity = Activity.between(nothing, Scrape.of(text, when=2.0))
    assert (activity.requests_per_s, activity.errors_per_s, activity.rejections_per_s) == (3.0, 1.0, 3.0)


@pytest.mark.parametrize(
    ("address", "base"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        (" http://host/v1/ ", "http://host"),
        ("https://host:8443/team/metrics", "https://host:8443/team"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_addresses_are_taken_as_users_type_them(address: str, base: str) -> None:
    assert base_of(address) == base


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("file:///etc/passwd", "not with file"),
        ("http://user:secret@host", "contains a password"),
        ("http://host/?api_key=secret", "a query"),
        ("http://", "names no server"),
        ("http://host:99999", "not valid"),
        ("http://a b", "names no server"),
    ],
)
def test_other_addresses_are_refused_without_repeating_a_secret(address: str, says: str) -> None:
    with pytest.raises(ScrapeError, match=says) as caught:
        base_of(address)
    assert (
        "secret" not in f"{caught.value} {caught.value.next_step}" and "http://127" in caught.value.next_step
    )


def test_other_pages_are_refused() -> None:
    with pytest.raises(ValueError, match="vllm:"):
        Scrape.of("python_info 1")
    result = CliRunner().invoke(app, ["top", "127.0.0.1:1", "--once"])
    assert result.exit_code == 3 and "no server at" in result.output + result.stderr

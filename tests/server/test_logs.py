"""The log of requests and the line of statistics: the numbers of /metrics, and a workload that can be replayed."""

from __future__ import annotations

import json
import re
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from starlette.testclient import TestClient

from engine.async_llm import AsyncLLM
from engine.server.metrics import PrometheusLogger
from engine.server.request_log import RequestLog
from engine.server.stat_line import StatLine
from engine.sim.workload import read_trace
from tests.server.conftest import application


def complete(client: TestClient, **more: Any) -> Any:
    body = {"prompt": "The cheapest title of all is " * 8, "max_tokens": 5, "ignore_eos": True, **more}
    return client.post("/v1/completions", json=body).json()


@pytest.fixture
def client(llm: AsyncLLM) -> TestClient:
    return application(llm)[0]  # anew for each test: its loggers replace the last ones


@pytest.fixture
def log(client: TestClient, llm: AsyncLLM, tmp_path: Path) -> RequestLog:
    block_size = llm.llm_engine.engine_core.config.cache.block_size
    made = RequestLog(tmp_path / "log.jsonl", "shop", block_size)
    llm.llm_engine.stat_loggers.append(made)
    return made


def lines(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]


def test_a_clock_that_jumps_changes_no_duration(
    client: TestClient, log: RequestLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hours = count(400_000, -7)
    monkeypatch.setattr(time, "time", lambda: 3600.0 * next(hours))
    for _ in range(3):
        complete(client)
    found = lines(tmp_path)
    assert all(0 <= each["QueueWaitMs"] <= each["TTFTMs"] <= each["E2EMs"] < 60_000 for each in found)
    arrivals = [each["arrival"] for each in found]
    assert arrivals == sorted(arrivals)
    sums = re.findall(r"^(vllm:\w+seconds_sum)\S* (\S+)", client.get("/metrics").text, re.MULTILINE)
    assert len(sums) >= 6
    for name, value in sums:
        assert 0 <= float(value) < 60, name


def test_each_request_is_a_line_without_its_prompt_and_the_lines_replay(
    client: TestClient, log: RequestLog, tmp_path: Path
) -> None:
    usage = [complete(client)["usage"] for _ in range(3)]
    found = lines(tmp_path)
    assert [each["prompt"] for each in found] == [each["prompt_tokens"] for each in usage]
    assert [each["output"] for each in found] == [5, 5, 5]
    assert found[1]["prefix_len"] > 0 and found[1]["prefix"] == found[0]["prefix"], "the prompt was cached"
    assert "cheapest" not in (tmp_path / "log.jsonl").read_text()
    assert all(0 <= each["QueueWaitMs"] <= each["TTFTMs"] <= each["E2EMs"] for each in found)
    measured = {metric["Name"] for metric in found[0]["_aws"]["CloudWatchMetrics"][0]["Metrics"]}
    assert measured == {"QueueWaitMs", "TTFTMs", "E2EMs", "PrefixCacheHit"} <= found[0].keys()
    replayed = read_trace(tmp_path / "log.jsonl")
    assert [(each.prompt_len, each.output_len) for each in replayed] == [
        (each["prompt"], 5) for each in found
    ]
    assert replayed[0].arrival == 0 and replayed[2].arrival > replayed[1].arrival


def test_a_line_of_a_request_without_tokens_is_not_replayed(tmp_path: Path) -> None:
    entry = {"arrival": 5.0, "prompt": 9, "output": 4, "finish_reason": "length"}
    aborted = {**entry, "arrival": 4.0, "output": 0, "finish_reason": "abort"}
    (tmp_path / "log.jsonl").write_text(f"{json.dumps(aborted)}\n{json.dumps(entry)}\n")
    assert [(each.arrival, each.output_len) for each in read_trace(tmp_path / "log.jsonl")] == [(0.0, 4)]


def test_prompts_are_written_when_asked_for(client: TestClient, llm: AsyncLLM, tmp_path: Path) -> None:
    tokenizer = llm.get_tokenizer()
    assert tokenizer is not None
    llm.llm_engine.stat_loggers.append(RequestLog(tmp_path / "log.jsonl", "shop", 4, tokenizer.decode))
    complete(client)
    assert "The cheapest title of all is" in lines(tmp_path)[0]["prompt_text"]


def test_a_full_disk_costs_lines_not_requests(
    client: TestClient, llm: AsyncLLM, caplog: pytest.LogCaptureFixture
) -> None:
    llm.llm_engine.stat_loggers.append(RequestLog(Path("/dev/full"), "shop", 4))
    assert [complete(client)["choices"][0]["finish_reason"] for _ in range(3)] == ["length"] * 3
    assert caplog.text.count("No space left") == 1


def test_the_line_has_the_numbers_of_the_metrics(client: TestClient, llm: AsyncLLM) -> None:
    [metrics] = llm.llm_engine.stat_loggers
    assert isinstance(metrics, PrometheusLogger)
    registry = metrics.registry
    line = StatLine(registry)
    began = line._when
    before = computed(registry)
    for _ in range(2):
        complete(client)
    text = line.next(began + 2.0)
    assert text is not None
    rate = (computed(registry) - before) / 2
    assert f"Avg prompt throughput: {rate:.1f} tokens/s, Avg generation throughput: 5.0 tokens/s" in text
    assert "Prefix cache hit rate: " in text
    assert (line.next(began + 3.0) or "").startswith("Avg prompt throughput: 0.0"), (
        "one line when it falls idle"
    )
    assert line.next(began + 4.0) is None


def computed(registry: CollectorRegistry) -> float:
    labels = {"model_name": "shop", "engine": "0", "source": "local_compute"}
    return registry.get_sample_value("vllm:prompt_tokens_by_source_total", labels) or 0.0

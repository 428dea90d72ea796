"""The rules, their unit tests and the dashboard: with promtool, and once with a real Prometheus at a real server."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from starlette.testclient import TestClient
from typer.testing import CliRunner

from app.cli.main import app
from engine.async_llm import AsyncLLM
from engine.gateway.metrics import GatewayMetrics, outcome, status_class
from engine.server.metrics import PrometheusLogger
from tests.server.conftest import Start, application
from tests.waiting import wait_until

FOLDER = Path(__file__).resolve().parents[2] / "engine" / "server" / "monitoring"
needs_prometheus = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs Prometheus: apt-get install prometheus"
)


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FOLDER / "rules.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return list(json.loads((FOLDER / "dashboard.json").read_text())["panels"])


def expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def test_everything_that_is_watched_exists(llm: AsyncLLM) -> None:
    registries = [
        PrometheusLogger("shop", llm.llm_engine.engine_core.config).registry,
        GatewayMetrics([]).registry,
    ]
    known = {name for registry in registries for metric in registry.collect() for name in names_of(metric)}
    known |= {rule["record"] for rule in rules() if "record" in rule}
    for text in [*expressions(), *(rule["expr"] for rule in rules())]:
        assert set(re.findall(r"(?:(?:vllm|model):|gateway_)[\w:]+", text)) <= known


def names_of(metric: Any) -> list[str]:
    endings = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(metric.type, [""])
    return [metric.name + ending for ending in endings]


def test_panels_lie_side_by_side() -> None:
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels()}
    assert len(places) == len(panels()) == len({panel["id"] for panel in panels()})
    assert all(panel["targets"] and panel["title"] for panel in panels())


def ends_with_error(client: TestClient) -> float:
    name = 'vllm:request_success_total{engine="0",finished_reason="error",model_name="shop"} '
    [line] = [line for line in client.get("/metrics").text.splitlines() if line.startswith(name)]
    return float(line.removeprefix(name))


@pytest.mark.parametrize("is_stream", [False, True])
def test_the_alert_on_failures_counts_those_of_the_engine_which_the_log_names(
    llm: AsyncLLM, is_stream: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client, service = application(llm)
    wrong = {
        "prompt": "a",
        "max_tokens": 2,
        "stream": is_stream,
        "structured_outputs": {"regex": "(a{1,1000}){1,1000}"},
    }
    assert client.post("/v1/completions", json=wrong).status_code == 400
    assert not caplog.text and ends_with_error(client) == 0, "a refused pattern is the client's error"

    [metrics] = llm.llm_engine.stat_loggers
    count = metrics.step

    def failing(stats: Any, when: float, core_outputs: Any, outputs: Any) -> None:
        for output in outputs:
            output.error, output.finished = "the worker has failed", True
            output.outputs[0].finish_reason = "error"
        count(stats, when, core_outputs, outputs)

    monkeypatch.setattr(metrics, "step", failing)
    body = {"prompt": "a", "max_tokens": 1, "stream": is_stream}
    assert client.post("/v1/completions", json=body).status_code == 500
    assert ends_with_error(client) == 1 and "a request failed" in caplog.text


def test_an_annotation_names_commands_and_options_that_exist() -> None:
    texts = [rule["annotations"]["next"] for rule in rules() if "alert" in rule]
    commands = {found for text in texts for found in re.findall(r"prep ((?:[a-z]+ )*[a-z]+)", text)}
    options = {found for text in texts for found in re.findall(r"--[a-z-]+", text)}
    assert commands and options
    for words in commands:
        first, *rest = words.split()
        wanted = [[first, *rest[:1]], [first]]
        assert any(CliRunner().invoke(app, [*each, "--help"]).exit_code == 0 for each in wanted), words
    told = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "300"}).output
    assert all(option in told for option in options)


def test_no_alert_for_a_backend_that_is_drained_or_for_what_no_backend_has() -> None:
    class Breaker:
        state = "closed"

    class Leaving:
        name, is_healthy, is_draining, breaker, load = "a", False, True, Breaker(), 0

    registry = GatewayMetrics([Leaving()]).registry
    found = {metric.name: metric.samples for metric in registry.collect()}
    assert not found["gateway_backend_up"] and len(found["gateway_backend_load"]) == 1
    assert [status_class(status) for status in (200, 404, 499, 500, 501, 503)] == [
        "2xx",
        "4xx",
        "4xx",
        "5xx",
        "4xx",
        "5xx",
    ]
    assert outcome("HTTP 501") == "client_error" and outcome("HTTP 500") == "server_error"


@needs_prometheus
def test_each_alert_fires_when_its_unit_test_says() -> None:
    ended = subprocess.run(
        ["promtool", "test", "rules", "rules_test.yaml"], cwd=FOLDER, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    tested = (FOLDER / "rules_test.yaml").read_text()
    slow = {"BudgetBurns", "BudgetLeaks"}  # as BudgetBurnsFast with longer windows
    assert {rule["alert"] for rule in rules() if "alert" in rule} - slow <= set(
        re.findall(r"alertname: (\w+)", tested)
    )


@needs_prometheus
def test_the_panels_ask_what_prometheus_understands(tmp_path: Path) -> None:
    asked = [text.replace("$__rate_interval", "1m").replace("$model", "shop") for text in expressions()]
    listed = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(asked)]
    file = tmp_path / "panels.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": listed}]}))
    ended = subprocess.run(["promtool", "check", "rules", str(file)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Any]:
    """Return a function that starts Prometheus at a server, with rules that are evaluated every second."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(address: str) -> httpx.Client:
        faster = (
            (FOLDER / "rules.yaml")
            .read_text()
            .replace("interval: 15s", "interval: 1s")
            .replace("for: 1m", "for: 3s")
        )
        (tmp_path / "rules.yaml").write_text(faster)
        config = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
        config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        config["scrape_configs"][0]["static_configs"] = [{"targets": [address]}]
        (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            url = f"127.0.0.1:{free.getsockname()[1]}"
        options = ["--config.file=prometheus.yaml", f"--web.listen-address={url}", "--storage.tsdb.path=data"]
        with (tmp_path / "log").open("wb") as log:
            running.append(subprocess.Popen(["prometheus", *options], cwd=tmp_path, stderr=log))
        return httpx.Client(base_url=f"http://{url}/api/v1")

    yield begin
    for process in running:
        process.kill()
        process.wait()


def until(found: Any) -> Any:
    """Return the first result that is not empty."""

    def result() -> Any:
        try:
            return found()
        except (httpx.HTTPError, KeyError, ValueError):
            return None

    return wait_until(result)


@needs_prometheus
@pytest.mark.slow
def test_prometheus_scrapes_a_server_and_an_alert_fires_when_it_dies(start: Start, prometheus: Any) -> None:
    server = start()
    api = prometheus(server.url.removeprefix("http://"))

    def value(query: str) -> float | None:
        found = api.get("/query", params={"query": query}).json()["data"]["result"]
        return float(found[0]["value"][1]) if found else None

    def alerts(state: str) -> list[Any]:
        found = api.get("/alerts").json()["data"]["alerts"]
        return [
            each for each in found if each["state"] == state and each["labels"]["alertname"] == "ServerDown"
        ]

    until(lambda: value("up") == 1)
    for _ in range(3):
        httpx.post(f"{server.url}/v1/completions", json={"prompt": "a", "max_tokens": 7, "ignore_eos": True})
    until(lambda: value("sum(vllm:generation_tokens_total)") == 21)
    assert value('sum(vllm:request_success_total{finished_reason="length"})') == 3
    assert not alerts("pending") and not alerts("firing")
    server.kill()
    until(lambda: alerts("pending"))
    assert value("up") == 0
    [fired] = until(lambda: alerts("firing"))
    assert fired["annotations"]["summary"].endswith("does not answer")
    waited = value("timestamp(ALERTS{alertstate='firing'})"), value("ALERTS_FOR_STATE")
    assert None not in waited and 3 <= waited[0] - waited[1] <= 8, "after its `for`, not before"

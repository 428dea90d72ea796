"""Spans of requests, received by a collector that decodes them with the protocol's own classes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from app.cli.main import app
from engine.async_llm import AsyncLLM
from engine.server.tracing import PROTOCOL_VARIABLE, RequestTracer
from tests.server.conftest import application

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector(HTTPServer):
    """A collector for OTLP over HTTP."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Receiver)
        self.spans: list[Any] = []
        self.url = f"http://127.0.0.1:{self.server_port}/v1/traces"


class Receiver(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                self.server.spans += scope.spans
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setenv(PROTOCOL_VARIABLE, "http/protobuf")
    collector = Collector()
    thread = threading.Thread(target=collector.serve_forever)
    thread.start()
    yield collector
    collector.shutdown()
    thread.join()
    collector.server_close()


@pytest.fixture
def client(llm: AsyncLLM) -> TestClient:
    return application(llm)[0]


@pytest.fixture
def tracer(client: TestClient, llm: AsyncLLM, collector: Collector) -> RequestTracer:
    tracer = RequestTracer(collector.url, "shop")
    llm.llm_engine.stat_loggers.append(tracer)
    return tracer


def values(span: Any) -> dict[str, Any]:
    return {
        attribute.key: getattr(attribute.value, attribute.value.WhichOneof("value"))
        for attribute in span.attributes
    }


def test_a_request_is_a_span_of_its_callers_trace_and_its_phases_fill_it(
    client: TestClient, tracer: RequestTracer, collector: Collector
) -> None:
    body = {"prompt": "The cheapest title", "max_tokens": 5, "ignore_eos": True, "n": 2, "temperature": 1}
    headers = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
    usage = client.post("/v1/completions", json=body, headers=headers).json()["usage"]
    tracer.close()
    [whole] = [span for span in collector.spans if span.name == "llm_request"]
    assert whole.trace_id.hex() == TRACE and whole.parent_span_id.hex() == SPAN
    found = values(whole)
    assert found["gen_ai.usage.prompt_tokens"] == usage["prompt_tokens"]
    assert found["gen_ai.usage.completion_tokens"] == usage["completion_tokens"] == 10
    assert found["gen_ai.request.n"] == 2 and found["gen_ai.request.max_tokens"] == 5
    assert found["gen_ai.response.model"] == "shop"
    inside = [span for span in collector.spans if span.parent_span_id == whole.span_id]
    assert [span.name for span in inside] == ["queue", "prefill", "decode", "detokenize"]
    times = [time for span in inside for time in (span.start_time_unix_nano, span.end_time_unix_nano)]
    assert whole.start_time_unix_nano <= times[0] and times[-1] == whole.end_time_unix_nano
    assert times == sorted(times) and times[1:-1:2] == times[2::2], (
        "each phase begins where the last one ends"
    )
    for phase, span in zip(("queue", "model_prefill", "model_decode"), inside, strict=False):
        seconds = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
        assert found[f"gen_ai.latency.time_in_{phase}"] == pytest.approx(seconds, abs=2e-6)


def test_a_request_without_a_caller_begins_a_trace(
    client: TestClient, tracer: RequestTracer, collector: Collector
) -> None:
    for _ in range(2):
        message = {"role": "user", "content": "a"}
        client.post("/v1/chat/completions", json={"messages": [message], "max_tokens": 1})
    tracer.close()
    spans = [span for span in collector.spans if span.name == "llm_request"]
    assert len(spans) == 2 and len({span.trace_id for span in spans}) == 2
    assert all(not span.parent_span_id for span in spans)


async def test_the_span_of_an_aborted_request_ends(
    llm: AsyncLLM, tracer: RequestTracer, collector: Collector
) -> None:
    outputs = llm.generate("a", request_id="left")
    await anext(outputs)
    await outputs.aclose()
    async for _ in llm.generate("a", request_id="stays"):
        pass
    tracer.close()
    found = {values(span)["gen_ai.request.id"] for span in collector.spans if span.name == "llm_request"}
    assert found == {"left", "stays"}


def test_an_unknown_protocol_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROTOCOL_VARIABLE, "pigeon")
    with pytest.raises(ValueError, match="must be grpc or http/protobuf, got 'pigeon'"):
        RequestTracer("http://127.0.0.1:1", "shop")


def test_without_the_libraries_the_option_says_how_to_install_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "engine.server.tracing", None)
    result = CliRunner().invoke(app, ["serve", "shop", "--otlp-traces-endpoint", "http://127.0.0.1:1"])
    assert result.exit_code != 0 and "pip install -e '.[otel]'" in result.stderr

"""Every status in the table of engine/server/errors.py, from a request that gets it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from app.cli.main import app
from engine.async_llm import AsyncLLM
from engine.config import EngineArgs
from engine.server import errors
from tests.server.conftest import BLOCKS, application
from tests.waiting import until, wait_until

BODY = {"prompt": "a", "max_tokens": 50, "ignore_eos": True}
PATH = "/v1/completions"

Ask = Callable[[AsyncLLM], Any]


def asking(body: dict[str, Any], **options: Any) -> Ask:
    return lambda llm: application(llm, **options)[0].post(PATH, json=body)


def too_slow(llm: AsyncLLM) -> Any:
    client, service = application(llm)
    object.__setattr__(service, "timeout_s", 0.0)
    return client.post(PATH, json=BODY)


def draining(llm: AsyncLLM) -> Any:
    client, service = application(llm)
    service.admission.is_draining = True
    return client.post(PATH, json=BODY)


def without_an_engine(_: AsyncLLM) -> Any:
    with AsyncLLM(EngineArgs(model="shop", num_gpu_blocks_override=BLOCKS)) as ended:
        client, _ = application(ended)
    return client.post(PATH, json=BODY)


CASES: dict[int, Ask] = {
    400: asking({"prompt": {"not": "text"}}),
    401: asking(BODY, api_keys=["secret"]),
    404: asking({**BODY, "model": "gpt-5"}),
    405: lambda llm: application(llm)[0].get(PATH),
    408: too_slow,
    413: asking({"prompt": "a" * 2000}, max_body_bytes=1000),
    431: lambda llm: application(llm)[0].get("/health", headers={"X-Long": "x" * (64 << 10)}),
    429: asking({**BODY, "n": 9, "temperature": 1}, max_queued=0),
    500: without_an_engine,
    501: asking({**BODY, "use_beam_search": True}),
    503: draining,
}


def table() -> dict[int, str]:
    """Return the statuses of the table with their types."""
    return {
        int(status): kind for status, kind in re.findall(r"^    (\d{3}) +(\S+)", errors.__doc__ or "", re.M)
    }


def test_the_table_has_no_other_statuses() -> None:
    assert table().keys() == CASES.keys() | {499}


@pytest.mark.parametrize("status", CASES)
def test_a_status_of_the_table_is_answered(llm: AsyncLLM, status: int) -> None:
    response = CASES[status](llm)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["code"] == status and error["type"] == table()[status] and error["message"]
    assert ("retry-after" in response.headers) == (status in (429, 503))


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_is_counted_as_499_and_its_request_is_aborted(
    llm: AsyncLLM, stream: bool
) -> None:
    client, service = application(llm)
    prompt = [70] * 1800  # its first token takes a while
    content = json.dumps({**BODY, "prompt": prompt, "max_tokens": 200, "stream": stream}).encode()
    incoming = [{"type": "http.request", "body": content}, {"type": "http.disconnect"}]
    sent: list[Any] = []

    async def receive() -> Any:
        return incoming.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json")]
    scope = {
        "type": "http", "method": "POST", "path": PATH, "raw_path": PATH.encode(), "query_string": b"",
        "headers": headers, "http_version": "1.1", "scheme": "http", "server": ("x", 80), "client": ("y", 1),
    }  # fmt: skip
    asyncio.run(client.app(scope, receive, send))
    assert sent[0]["status"] == 499 and service.admission.in_flight == 0
    counted = 'http_requests_total{handler="/v1/completions",method="POST",status="4xx"} 1.0'
    wait_until(lambda: counted in client.get("/metrics").text)
    assert asyncio.run(until(llm.reset_prefix_cache)), "its blocks are free"


def test_no_request_is_a_422(client: TestClient) -> None:
    """FastAPI's own status for wrong types; OpenAI and vLLM answer 400."""
    for path in (
        "/v1/completions",
        "/v1/chat/completions",
        "/tokenize",
        "/detokenize",
        "/v1/load_lora_adapter",
    ):
        assert (
            client.post(path, json={"prompt": 5, "messages": 5, "tokens": "x", "lora_name": []}).status_code
            == 400
        )


def test_a_server_without_a_tokenizer_is_refused_before_the_model_is_loaded() -> None:
    result = CliRunner().invoke(app, ["serve", "shop", "--skip-tokenizer-init"])
    assert result.exit_code == 2 and "needs the tokenizer" in result.output

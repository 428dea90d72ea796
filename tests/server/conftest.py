"""A server's application in this process, and a real server in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from starlette.testclient import TestClient

from engine.async_llm import AsyncLLM
from engine.config import EngineArgs
from engine.server.admission import Admission
from engine.server.app import create_app
from engine.server.child_server import ChildServer
from engine.server.metrics import PrometheusLogger
from engine.server.models import Models
from engine.server.service import Service
from tests.server.processes import start_server

BLOCKS = 512


@pytest.fixture(scope="session")
def llm() -> Iterator[AsyncLLM]:
    with AsyncLLM(EngineArgs(model="shop", max_num_seqs=8, num_gpu_blocks_override=BLOCKS)) as llm:
        yield llm


def application(
    llm: AsyncLLM, max_queued: int | None = None, *, tool_call_parser: str = "hermes", **options: Any
) -> tuple[TestClient, Service]:
    """Return a client of a new application for the engine."""
    metrics = PrometheusLogger("shop", llm.llm_engine.engine_core.config)
    llm.llm_engine.stat_loggers = [metrics]
    service = Service(
        llm, Models(llm, ["shop"], "shop"), Admission(8, max_queued),
        shows_cached_tokens=True, tool_call_parser=tool_call_parser,
    )  # fmt: skip
    app = create_app(service, metrics, version="1.2.3", **options)
    return TestClient(app, raise_server_exceptions=False), service


@pytest.fixture
def client(llm: AsyncLLM) -> TestClient:
    return application(llm)[0]


Start = Callable[..., ChildServer]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Return a function that starts a server with these options and waits until it answers."""
    with ExitStack() as stack:
        yield lambda *options, port=0: start_server(
            stack, tmp_path_factory.mktemp("serve"), *options, port=port
        )

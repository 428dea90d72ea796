"""Contract tests judge any implementation of a seam, yours included.

pytest tests/contracts -k attention --impl lessons.my_attention:MyAttention
pytest tests/contracts -k scheduler --impl lessons.my_scheduler:MyScheduler
pytest tests/contracts -k block_pool --impl lessons.my_pool:MyPool
pytest tests/contracts -k drafter --impl lessons.my_drafter:MyDrafter
pytest tests/contracts -k kv_connector --impl lessons.my_connector:MyConnector
pytest tests/contracts -k grammar --impl lessons.my_grammar:MyCompiledGrammar
pytest tests/contracts -k linear_method --impl lessons.my_int3:MyInt3
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from engine.core.blocks import BlockPool
from engine.core.connector import KVConnector
from engine.core.grammar_protocol import CompiledGrammar
from engine.core.scheduler import Scheduler


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--impl", default=None, help="class to judge in place of ours: package.module:Class")


@pytest.fixture
def impl(request: pytest.FixtureRequest) -> str | None:
    """Return the class that `--impl` names; None: test the shipped ones."""
    return request.config.getoption("--impl", default=None)


@pytest.fixture
def scheduler_class(impl: str | None) -> Any:
    return _load(impl, Scheduler, ("add", "schedule", "update", "abort"))


@pytest.fixture
def block_pool_class(impl: str | None) -> Any:
    return _load(impl, BlockPool, ("take", "touch", "release", "register"))


@pytest.fixture
def grammar_class(impl: str | None) -> Any:
    return None if impl is None else _load(impl, CompiledGrammar, ("start",))


@pytest.fixture
def kv_connector_class(impl: str | None) -> Any:
    return None if impl is None else _load(impl, KVConnector, ("make_worker", "make_scheduler"))


def _load(impl: str | None, ours: type, methods: tuple[str, ...]) -> Any:
    """The class that `--impl` names; skips the test if that is the implementation of another seam."""
    if impl is None:
        return ours
    module, _, name = impl.partition(":")
    if not name:
        raise pytest.UsageError(f"--impl takes package.module:Class, got {impl!r}")
    theirs = getattr(import_module(module), name)
    missing = [method for method in methods if not hasattr(theirs, method)]
    if missing:
        pytest.skip(f"{impl} is no {ours.__name__}: it has no {', '.join(missing)}")
    return theirs

"""The tiny random model of tests/engine, and engines over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.engine_core import EngineCore
from tests.engine.conftest import make_engine as _make_engine
from tests.engine.conftest import model_dir, one_thread  # noqa: F401
from tests.transfer.pairs import TRANSPORTS

make_engine = _make_engine


@pytest.fixture(params=sorted(TRANSPORTS))
def transport(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., dict[str, Any]]]:
    """transport(kv_role, kv_load_failure_policy=..., **extra) -> kv_transfer_config."""
    make = TRANSPORTS[request.param]

    def config(role: str = "kv_both", policy: str = "recompute", **extra: Any) -> dict[str, Any]:
        return {"kv_role": role, "kv_load_failure_policy": policy, **make(tmp_path, **extra)}

    yield config


@pytest.fixture
def pair(
    make_engine: Callable[..., EngineCore],
    transport: Callable[..., dict[str, Any]],
) -> Iterator[tuple[EngineCore, EngineCore]]:
    """A prefill and a decode engine."""
    engines = (
        make_engine(kv_transfer_config=transport("kv_producer")),
        make_engine(kv_transfer_config=transport("kv_consumer")),
    )
    yield engines
    for engine in engines:
        engine.shutdown()

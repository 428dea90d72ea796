"""An engine over the tiny random model of `harness`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineArgs
from engine.engine_core import EngineCore
from tests.engine.harness import TINY_LLAMA


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny-llama")
    (folder / "config.json").write_text(json.dumps(TINY_LLAMA))
    return folder


@pytest.fixture(scope="module")
def make_engine(model_dir: Path) -> Iterator[Callable[..., EngineCore]]:
    """make_engine(**engine_args): block size 4, every invariant checked after every step."""
    engines: list[EngineCore] = []

    def make(**overrides: Any) -> EngineCore:
        settings = {
            "model": str(model_dir),
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "block_size": 4,
            "max_num_seqs": 64,
            "debug_checks": True,
            **overrides,
        }
        engine = EngineCore.from_args(EngineArgs.create(**settings))
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.shutdown()

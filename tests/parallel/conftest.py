"""Engines over several processes. Starting one costs seconds: tests share it where they leave it as it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineArgs
from engine.engine_core import EngineCore
from tests.engine.harness import TINY_LLAMA


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny-llama")
    (folder / "config.json").write_text(json.dumps(TINY_LLAMA))
    return folder


@pytest.fixture(scope="module")
def make_engine(model_dir: Path) -> Iterator[Callable[..., EngineCore]]:
    engines: list[EngineCore] = []

    def make(**overrides: Any) -> EngineCore:
        settings = {
            "model": str(model_dir),
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "block_size": 4,
            "max_num_seqs": 16,
            "debug_checks": True,
            **overrides,
        }
        engine = EngineCore.from_args(EngineArgs.create(**settings))
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.shutdown()

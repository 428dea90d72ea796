"""Engines over several processes. Starting one costs seconds: tests share it where they leave it as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.engine_core import EngineCore
from tests.engine.harness import engine_factory, tiny_settings, write_tiny_llama


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture(scope="module")
def make_engine(model_dir: Path) -> Iterator[Callable[..., EngineCore]]:
    with engine_factory(**tiny_settings(model_dir), max_num_seqs=16) as make:
        yield make


@pytest.fixture(scope="module")
def settings(model_dir: Path) -> dict[str, Any]:
    """Engine arguments of replicas."""
    return {**tiny_settings(model_dir), "num_gpu_blocks_override": 64, "max_num_seqs": 8}

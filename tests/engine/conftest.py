"""An engine over the tiny random model of `harness`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from engine.engine_core import EngineCore
from tests.engine.harness import engine_factory, tiny_settings, write_tiny_llama


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture(scope="module")
def make_engine(model_dir: Path) -> Iterator[Callable[..., EngineCore]]:
    """make_engine(**engine_args): block size 4, every invariant checked after every step."""
    with engine_factory(**tiny_settings(model_dir), max_num_seqs=64) as make:
        yield make

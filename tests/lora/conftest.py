from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import LLM
from tests.lora.peft_files import ATTENTION, write_adapter

OpenLLM = Callable[..., LLM]


@pytest.fixture
def open_llm() -> Iterator[OpenLLM]:
    """Engines with small caches, checked after every step and shut down at the end."""
    opened: list[LLM] = []

    def open_(model: str | Path = "shop", **args: Any) -> LLM:
        defaults = {
            "dtype": "float32",
            "num_gpu_blocks_override": 200,
            "max_num_seqs": 8,
            "debug_checks": True,
        }
        llm = LLM(str(model), **(defaults | args))
        opened.append(llm)
        return llm

    yield open_
    for llm in opened:
        llm.shutdown()


@pytest.fixture(scope="session")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three of different ranks and targets."""
    folder = tmp_path_factory.mktemp("adapters")
    return [
        write_adapter(folder / "one", seed=1, rank=8),
        write_adapter(folder / "two", seed=2, rank=16, lora_alpha=8),
        write_adapter(folder / "three", seed=3, rank=4, targets=[*ATTENTION[:1], "v_proj", "down_proj"]),
    ]

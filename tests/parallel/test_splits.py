"""Splits that cannot work are refused before any process is started, with what would work."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

from engine.config import ConfigError, EngineArgs
from engine.engine_core import EngineCore
from engine.exec.base import executor_class
from engine.exec.multiproc import MultiprocExecutor
from engine.exec.uniproc import UniProcExecutor
from engine.resolve import resolve

MakeEngine = Callable[..., EngineCore]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tensor_parallel_size": 3}, "does not divide the 4 attention heads .* that do: 1, 2|that do: 1"),
        ({"tensor_parallel_size": 8}, "tensor_parallel_size=8 does not divide the 4 attention heads"),
        (
            {"tensor_parallel_size": 2, "hf_overrides": {"vocab_size": 129}},
            "tensor_parallel_size=2 does not divide the 129 vocab_size",
        ),
        (
            {"tensor_parallel_size": 2, "hf_overrides": {"intermediate_size": 65}},
            "tensor_parallel_size=2 does not divide the 65 intermediate_size",
        ),
        (
            {"tensor_parallel_size": 2, "hf_overrides": {"num_attention_heads": 6, "num_key_value_heads": 3}},
            "neither divides the 3 kv heads",
        ),
        ({"tensor_parallel_size": 2, "quantization": "fp8"}, "quantised weights are loaded whole"),
        ({"pipeline_parallel_size": 3}, "pipeline_parallel_size=3 is more than the 2 layers"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size must be an integer of at least 1"),
        (
            {"distributed_executor_backend": "uni", "tensor_parallel_size": 2},
            "runs one worker and 2 were asked",
        ),
        ({"distributed_executor_backend": "mpi"}, "must be one of uni, mp, ray, or a class"),
        ({"distributed_executor_backend": "nowhere:Executor"}, "cannot be imported"),
        (
            {
                "tensor_parallel_size": 2,
                "speculative_config": {"method": "ngram", "num_speculative_tokens": 2},
            },
            "speculative_config drafts and verifies on one worker",
        ),
    ],
)
def test_a_split_that_cannot_work_is_refused(
    make_engine: MakeEngine, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_engine(**options)


def test_one_worker_runs_here_and_more_run_in_processes_unless_told_otherwise() -> None:
    def chosen(**options: Any) -> type:
        return executor_class(resolve(EngineArgs(**options)).parallel.backend)

    assert chosen() is UniProcExecutor
    assert chosen(tensor_parallel_size=2) is MultiprocExecutor
    assert chosen(pipeline_parallel_size=2) is MultiprocExecutor
    assert chosen(distributed_executor_backend="mp") is MultiprocExecutor
    assert chosen(distributed_executor_backend=UniProcExecutor) is UniProcExecutor


def test_without_ray_the_message_says_how_to_get_it(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "ray" else find(name, *rest)
    )
    with pytest.raises(ConfigError, match=r"needs Ray: pip install -e '\.\[ray\]'"):
        make_engine(tensor_parallel_size=2, distributed_executor_backend="ray")

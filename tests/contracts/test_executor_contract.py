"""Any executor gives the tokens of the one-process executor: greedy, seeded, chunked, cached, preempted.

pytest tests/contracts -k executor --impl lessons.my_executor:MyExecutor
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineArgs
from engine.core.request import Request
from engine.core.sched_output import ModelRunnerOutput, SchedulerOutput
from engine.engine_core import EngineCore
from engine.exec.base import Executor
from tests.engine.harness import TINY_LLAMA, request, run, tokens

SHIPPED: list[Any] = [
    pytest.param({"distributed_executor_backend": "uni"}, id="uni"),
    pytest.param({"tensor_parallel_size": 2}, id="mp-tp2"),
    pytest.param({"pipeline_parallel_size": 2}, id="mp-pp2"),
    pytest.param(
        {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, id="mp-tp2-pp2", marks=pytest.mark.slow
    ),
    pytest.param(
        {"tensor_parallel_size": 2, "distributed_executor_backend": "ray"},
        id="ray-tp2",
        marks=pytest.mark.slow,
    ),
]
PROMPT = list(range(3, 40))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "engine" in metafunc.fixturenames:
        asked = metafunc.config.getoption("--impl", default=None)
        params = [pytest.param({"distributed_executor_backend": asked}, id="impl")] if asked else SHIPPED
        metafunc.parametrize("engine", params, indirect=True, scope="module")


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "config.json").write_text(json.dumps(TINY_LLAMA))
    return folder


def make(model_dir: Path, **options: Any) -> EngineCore:
    """So few blocks that requests lose theirs, and so small a budget that prompts take several steps."""
    settings: dict[str, Any] = {
        "model": str(model_dir),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "block_size": 4,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 16,
        "num_gpu_blocks_override": 26,
        "max_model_len": 80,
        "debug_checks": True,
    }
    return EngineCore.from_args(EngineArgs.create(**{**settings, **options}))


@pytest.fixture(scope="module")
def engine(request: pytest.FixtureRequest, model_dir: Path) -> Iterator[EngineCore]:
    if request.param.get("distributed_executor_backend") == "ray":
        pytest.importorskip("ray")
    engine = make(model_dir, **request.param)
    yield engine
    engine.shutdown()


@pytest.fixture(scope="module")
def expected(model_dir: Path) -> dict[str, list[int]]:
    engine = make(model_dir)
    said = tokens(run(engine, work()))
    engine.shutdown()
    return said


def work() -> list[Request]:
    return [
        request("greedy", PROMPT, max_tokens=20),
        request("seeded", PROMPT[:30], temperature=1.0, seed=7, max_tokens=24),
        request("same prefix", PROMPT[:20] + [90, 91], temperature=0.8, top_p=0.9, seed=8, max_tokens=24),
        request("short", [5], temperature=1.0, seed=9, max_tokens=30, repetition_penalty=1.3),
        request("logprobs", PROMPT[:9], max_tokens=6, logprobs=3, prompt_logprobs=2),
    ]


def test_it_is_an_executor(engine: EngineCore) -> None:
    assert isinstance(engine.executor, Executor)


def test_tokens_are_those_of_one_process_also_after_preemption_and_prefix_hits(
    engine: EngineCore, expected: dict[str, list[int]]
) -> None:
    preempted = 0
    for round_number in range(2):  # the second finds prefixes in the cache
        requests = work()
        outputs = run(engine, requests)
        assert tokens(outputs) == expected, f"round {round_number}"
        preempted += sum(item.num_preemptions for item in requests)
    assert preempted > 0 and any(item.num_cached_tokens > 0 for item in requests)


def test_logprobs_come_with_the_tokens_and_the_prompt(engine: EngineCore) -> None:
    outputs = run(engine, [request("a", PROMPT[:9], max_tokens=5, logprobs=3, prompt_logprobs=2)])["a"]
    assert sum(len(output.logprobs or []) for output in outputs) == 5
    assert sum(len(output.prompt_logprobs or []) for output in outputs) == 8


def test_an_aborted_request_leaves_nothing_and_its_id_can_come_again(
    engine: EngineCore, expected: dict[str, list[int]]
) -> None:
    engine.add_request(request("greedy", PROMPT[:11], max_tokens=30))
    for _ in range(4):
        engine.step()
    engine.abort(["greedy"])
    assert tokens(run(engine, work())) == expected
    assert engine.scheduler.kv.usage == 0


def test_a_step_without_rows_is_allowed(engine: EngineCore) -> None:
    assert engine.executor.submit(SchedulerOutput(10_000))().sampled_token_ids == {}
    assert isinstance(engine.executor.submit(SchedulerOutput(10_001))(), ModelRunnerOutput)


def test_a_call_reaches_every_worker(engine: EngineCore) -> None:
    answers = engine.executor.collective_rpc("determine_num_blocks")
    assert answers == [26] * engine.config.parallel.world_size


def test_after_shutdown_nothing_runs(engine: EngineCore) -> None:
    engine.executor.shutdown()
    engine.executor.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        engine.executor.submit(SchedulerOutput(10_002))

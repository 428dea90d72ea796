"""Replicas as Ray actors: same tokens, one may die and the other goes on, and Ray goes when the last one goes.

The ranks of one engine as actors are judged by tests/contracts/test_executor_contract.py.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from engine import LLM, SamplingParams
from engine.config import ConfigError
from engine.core.request import Request
from engine.exec.dp import DataParallelCore

pytestmark = pytest.mark.slow
PROMPTS = [[3, 4, 5], [6, 7], list(range(8, 40)), [9, 9, 9, 9, 9], [11], [12, 13]]


@pytest.fixture(scope="module")
def ray_exec() -> Any:
    pytest.importorskip("ray")
    return importlib.import_module("engine.exec.ray")


@pytest.fixture(scope="module")
def pair(settings: dict[str, Any], ray_exec: Any) -> Iterator[LLM]:
    """One engine for all tests here, since Ray starts slowly. The last tests break it."""
    with LLM(**settings, data_parallel_size=2, distributed_executor_backend="ray") as llm:
        yield llm


def core_of(llm: LLM) -> DataParallelCore:
    core = llm.llm_engine.engine_core
    assert isinstance(core, DataParallelCore)
    return core


def pids(core: DataParallelCore) -> list[int]:
    return [link.remote.pid for link in core._links]


def processes_of_ray() -> set[int]:
    """Return the processes of every Ray started by a descendant of this process."""
    names = ("raylet", "gcs_server", "ray::", "default_worker.py", "ray/dashboard", "log_monitor.py")
    return {
        child.pid
        for child in psutil.Process().children(recursive=True)
        if child.status() != psutil.STATUS_ZOMBIE and any(name in " ".join(child.cmdline()) for name in names)
    }


def test_two_replicas_say_what_one_engine_says_and_share_the_work(
    pair: LLM, settings: dict[str, Any]
) -> None:
    params = [
        SamplingParams(max_tokens=10, temperature=t, seed=5, ignore_eos=True) for t in (0, 1, 1, 0.5, 1, 0)
    ]
    with LLM(**settings) as alone:
        expected = [output.outputs[0].token_ids for output in alone.generate(PROMPTS, params)]
    assert [output.outputs[0].token_ids for output in pair.generate(PROMPTS, params)] == expected
    assert core_of(pair).router.num_routed == [3, 3]


def test_a_replica_that_cannot_be_built_says_why(pair: LLM, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="'nowhere:Attention' cannot be imported"):
        LLM(
            **settings,
            data_parallel_size=2,
            distributed_executor_backend="ray",
            attention_backend="nowhere:Attention",
        )


def test_an_actor_that_fits_nowhere_is_reported_instead_of_waited_for(
    pair: LLM, ray_exec: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_exec, "_START_S", 5.0)
    with pytest.raises(ConfigError, match="did not start worker rank 0 within 5 s.*ray status"):
        ray_exec.start_actors([("worker rank 0", dict, ())], num_gpus=64, num_workers=1)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "no address"])
def test_a_cluster_that_cannot_be_joined_is_an_error_of_the_user(ray_exec: Any, address: str) -> None:
    script = (
        "from engine.config import ConfigError\nfrom engine.exec.ray import connect\n"
        "try:\n    connect()\nexcept ConfigError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "RAY_ADDRESS": address},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "Ray cannot be reached or started" in done.stdout and "RAY_ADDRESS" in done.stdout, done.stderr


def test_a_replica_that_dies_takes_its_requests_along_and_no_others(pair: LLM) -> None:
    core = core_of(pair)
    params = SamplingParams(max_tokens=100, ignore_eos=True)
    for number in range(4):
        core.add_request(Request(str(number), [3 + number], params))
    outputs = core.step()
    os.kill(pids(core)[1], signal.SIGKILL)
    while core.has_unfinished():
        outputs += core.step()
    ends = [output for output in outputs if output.finish_reason is not None]
    assert sorted(str(end.finish_reason) for end in ends) == ["error", "error", "length", "length"]
    assert all("replica 1 is gone" in str(end.error) for end in ends if end.finish_reason == "error")
    assert len(pair.generate([[7]], params)[0].outputs[0].token_ids) == 100


def test_after_shutdown_no_actor_and_no_ray_stays(pair: LLM) -> None:
    started = [psutil.Process(pid) for pid in {pids(core_of(pair))[0], *processes_of_ray()}]
    assert len(started) > 2, "the actor that lives, and Ray itself"
    pair.shutdown()
    _, alive = psutil.wait_procs(started, timeout=60)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []
    import ray

    assert not ray.is_initialized()

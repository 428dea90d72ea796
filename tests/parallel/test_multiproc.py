"""Life and death of worker processes: no hangs, no leftovers, errors that name the failed worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.config import ConfigError, EngineArgs
from engine.core.errors import EngineDeadError
from engine.engine_core import EngineCore
from engine.exec.multiproc import MultiprocExecutor, threads_per_worker
from engine.exec.process import RemoteProcess
from prep_common.child_process import ProcessEnded
from tests.engine.harness import TINY_LLAMA, request, run, tokens
from tests.parallel import probes
from tests.waiting import has_ended, wait_until

MakeEngine = Callable[..., EngineCore]


def ended(pids: list[int]) -> bool:
    """Wait until these processes are gone."""
    return wait_until(lambda: all(has_ended(pid) for pid in pids))


class Counter:
    """Something to keep in another process."""

    def __init__(self, start: int) -> None:
        if start < 0:
            raise ConfigError("start must not be negative")
        self.value = start

    def add(self, number: int) -> int:
        self.value += number
        return self.value

    def exit(self, code: int) -> None:
        os._exit(code)

    def environment(self, name: str) -> str | None:
        return os.environ.get(name)


def test_an_object_in_another_process_answers_in_order_and_ends_when_let_go() -> None:
    remote = RemoteProcess("counter", Counter, 5, environment={"GREETING": "hello"})
    assert remote.receive() == (0, None)
    first = remote.send("add", 2)
    remote.send("add", 10, answered=False)
    third = remote.send("add", 100)
    assert [remote.receive(), remote.receive()] == [(first, 7), (third, 117)]
    remote.send("no_such_method")
    with pytest.raises(AttributeError, match="no_such_method") as error:
        remote.receive()
    assert "in the worker process" in error.value.__notes__[0]
    remote.send("environment", "GREETING")
    assert remote.receive()[1] == "hello"
    remote.close()
    assert remote.exit_code() == 0


@pytest.mark.slow
def test_an_object_that_cannot_be_built_and_a_process_that_ends_say_so() -> None:
    unbuilt = RemoteProcess("counter", Counter, -1)
    with pytest.raises(ConfigError, match="must not be negative"):
        unbuilt.receive()
    unbuilt.close()
    ending = RemoteProcess("counter", Counter, 0)
    ending.receive()
    ending.send("exit", 3)
    with pytest.raises(ProcessEnded, match="counter ended with exit code 3"):
        ending.receive()
    with pytest.raises(ProcessEnded):
        ending.send("add", 1)
        ending.receive()


@pytest.mark.slow
def test_a_killed_worker_ends_the_engine_with_its_rank_and_signal_and_no_process_stays(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(tensor_parallel_size=2)
    pids = engine.executor.collective_rpc(probes.pid)
    assert os.getpid() not in pids and len(set(pids)) == 2
    run(engine, [request("before", [3, 4, 5])])
    engine.add_request(request("a", [3, 4, 5], max_tokens=50))
    engine.add_request(request("b", [6, 7], max_tokens=50))
    engine.step()
    os.kill(pids[1], signal.SIGKILL)
    outputs = []
    while engine.has_unfinished():
        outputs = engine.step()
    assert {output.request_id: output.finish_reason for output in outputs} == {"a": "error", "b": "error"}
    assert all(
        "worker rank 1 was killed by SIGKILL (exit code -9)" in str(output.error) for output in outputs
    )
    with pytest.raises(EngineDeadError, match="worker rank 1"):
        engine.step()
    assert ended(pids)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "message"), [("die", "worker rank 1 was killed"), ("fail", "rank 1 failed.*planted")]
)
def test_a_worker_that_dies_or_fails_inside_a_step_is_named_though_its_peer_fails_too(
    make_engine: MakeEngine, what: str, message: str
) -> None:
    engine = make_engine(tensor_parallel_size=2)
    pids = engine.executor.collective_rpc(probes.pid)
    engine.executor.collective_rpc(probes.arm, 1, what)
    engine.add_request(request("a", [3, 4, 5]))
    (output,) = engine.step()
    assert output.finish_reason == "error"
    with pytest.raises(EngineDeadError, match=message):
        engine.check_alive()
    assert ended(pids)


@pytest.mark.slow
def test_a_worker_that_cannot_start_is_reported_and_the_others_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY_LLAMA))
    started: list[int] = []
    start = RemoteProcess.__init__

    def remember(self: RemoteProcess, *args: Any, **options: Any) -> None:
        start(self, *args, **options)
        started.append(self.pid)

    monkeypatch.setattr(RemoteProcess, "__init__", remember)
    # What only a worker finds out: a backend that cannot be imported.
    args = EngineArgs.create(
        model=str(tmp_path),
        load_format="dummy",
        skip_tokenizer_init=True,
        tensor_parallel_size=2,
        attention_backend="nowhere:Attention",
    )
    with pytest.raises(ConfigError, match="'nowhere:Attention' cannot be imported"):
        EngineCore.from_args(args)
    assert len(started) == 2 and ended(started)


@pytest.mark.slow
def test_a_class_that_lives_in_the_script_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY_LLAMA))
    script = (
        "from engine import LLM\n"
        "class Mine:\n"
        "    def __init__(self, *args): pass\n"
        "    def add_request(self, *args): return False\n"
        "    def remove_request(self, *args): pass\n"
        "    def apply(self, *args): pass\n"
        f"LLM({str(tmp_path)!r}, load_format='dummy', skip_tokenizer_init=True, tensor_parallel_size=2,\n"
        "    logits_processors=[Mine])\n"
    )
    path = tmp_path / "script.py"
    path.write_text(script)
    done = _python(str(path))
    assert done.wait(120) != 0
    assert "must live in a module, not in the script that is run" in done.communicate()[1]


SERVE = """
import sys
from engine import LLM, SamplingParams
from tests.parallel import probes
llm = LLM(sys.argv[1], load_format="dummy", skip_tokenizer_init=True, tensor_parallel_size=2)
print(*llm.llm_engine.engine_core.executor.collective_rpc(probes.pid), flush=True)
while True:
    llm.generate([[3, 4, 5]], SamplingParams(max_tokens=200, ignore_eos=True), use_tqdm=False)
"""


def _python(*args: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, *args],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_the_main_process_ends_its_workers_end_too(model_dir: Path, how: signal.Signals) -> None:
    main = _python("-c", SERVE, str(model_dir))
    assert main.stdout is not None
    pids = [int(pid) for pid in main.stdout.readline().split()]
    assert len(pids) == 2
    if how is signal.SIGINT:
        os.killpg(main.pid, how)  # as a terminal does: to every process of the group
    else:
        main.send_signal(how)
    main.communicate(timeout=60)
    assert main.returncode != 0
    assert ended(pids)


@pytest.mark.slow
def test_after_ctrl_c_in_the_middle_of_a_step_the_engine_goes_on(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(tensor_parallel_size=2)
    expected = tokens(run(engine, [request("x", [3, 4, 5], temperature=1.0, seed=4)]))
    executor = engine.executor
    assert isinstance(executor, MultiprocExecutor)

    def press(*_args: object) -> Any:
        raise KeyboardInterrupt

    engine.add_request(request("a", [3, 4, 5]))
    with monkeypatch.context() as patch:
        patch.setattr(executor, "collect", press)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    assert not engine.has_unfinished()
    assert tokens(run(engine, [request("x", [3, 4, 5], temperature=1.0, seed=4)])) == expected


def test_workers_share_the_cores_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: range(8), raising=False)
    assert [threads_per_worker(n) for n in (1, 2, 4, 16)] == [8, 4, 2, 1]
    assert [threads_per_worker(n, num_reserved=1) for n in (1, 2, 16)] == [7, 3, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads_per_worker(4) == 3

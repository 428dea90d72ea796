"""Live engines on the shipped model, in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.debugger.live import registry, workloads
from app.debugger.live.client import LiveError, LiveRun, LiveView
from app.debugger.live.settings import LiveSettings
from app.debugger.live.workloads import Traffic
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
TRAFFIC = Traffic(8, 48, True, 0, False, ())


@pytest.fixture
def started() -> Iterator[list[LiveRun]]:
    """Append what is started: it is stopped at the end."""
    runs: list[LiveRun] = []
    yield runs
    for run in runs:
        registry.stop(run.run_id)


def seen(run: LiveRun) -> LiveView:
    """Everything that the engine has said by now."""
    num_lines = run.info()["num_lines"]
    wait_until(lambda: run.lines.num_lines >= num_lines or run.end is not None)
    return LiveView(run).catch_up()


def step(run: LiveRun, num_steps: int) -> LiveView:
    target = run.info()["step"] + num_steps
    run.tell("step", n=num_steps)
    wait_until(lambda: run.info()["step"] == target and run.info()["paused"])
    return seen(run)


@pytest.mark.slow
def test_rewinding_replays_what_was_injected_and_aborted_and_keeps_what_was_left(
    started: list[LiveRun],
) -> None:
    arrivals = workloads.make("chat", TRAFFIC)
    first = registry.start(LiveSettings(num_blocks=40), arrivals, "chat", paused=True)
    started.append(first)
    assert seen(first).index.num_steps == 0
    step(first, 10)
    question = [{"role": "user", "content": "Hello"}]
    assert first.tell("inject", messages=question, max_tokens=20)["request_ids"] == ["injected-1"]
    step(first, 20)
    first.tell("abort", request_id="chat-1")
    with pytest.raises(LiveError, match="max_model_len"):
        first.tell("inject", prompt="again " * 3000)
    step(first, 49)
    first.tell("breakpoints", breakpoints=[{"free_below": 100}])
    first.tell("resume", steps_per_s=50)
    wait_until(lambda: first.info()["step"] == 79 and first.info()["paused"])
    before = seen(first)
    first.tell("breakpoints", breakpoints=[{"event": "preempt"}, {"free_below": 2}])

    with pytest.raises(LiveError, match="it has run steps 0 to 79"):
        registry.rewind(first.run_id, 80)
    again, how = registry.rewind(first.run_id, 69)
    started.append(again)
    assert how["differs_at"] is None and again.info()["paused"]
    assert again.info()["breakpoints"] == [{"event": "preempt"}, {"free_below": 2}], (
        "they stop the new engine, too"
    )
    assert again.info()["steps_per_s"] == 50
    again.tell("breakpoints", breakpoints=[])
    assert first.end is not None and first.continued_as == again.run_id
    after = seen(again)
    old, new = before.reader(0), after.reader(0)
    assert (old.num_steps, new.num_steps) == (80, 70)
    assert not old.problems and not new.problems, "the engine's own checks agree with what is shown"
    for number in range(70):
        assert old.step(number).rows == new.step(number).rows
        a, b = old.state_at(number), new.state_at(number)
        assert (a.block_tables, a.waiting, list(a.blocks.ref)) == (
            b.block_tables,
            b.waiting,
            list(b.blocks.ref),
        )
    assert [new.find(name).ended for name in ("chat-1",)] == [30]
    assert new.find("injected-1").added == 10
    goes_on = step(again, 10).reader(0)
    assert [goes_on.step(n).rows for n in range(70, 80)] == [old.step(n).rows for n in range(70, 80)]
    with pytest.raises(LiveError, match="cannot be rewound"):
        registry.rewind(first.run_id, 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, words",
    [
        ("Leaks", "IntegrityError"),
        pytest.param("Raises", "KeyError: 'the table of finished requests'", marks=pytest.mark.slow),
    ],
)
def test_a_scheduler_with_a_bug_is_named_and_its_run_kept(
    started: list[LiveRun], name: str, words: str
) -> None:
    settings = LiveSettings(scheduler_cls=f"tests.app.debugger.faulty_schedulers:{name}")
    run = registry.start(settings, workloads.make("chat", TRAFFIC), "faulty", paused=True)
    started.append(run)
    run.tell("resume")
    run.wait(60)
    assert run.end is not None and words in run.end
    process = registry.process_of(run.run_id)
    assert process is not None
    wait_until(lambda: process.failure is not None)
    assert words in str(process.failure)
    view = seen(run)
    assert view.index.num_steps >= 12 and any(words in warning for warning in view.warnings)
    again, _ = registry.rewind(run.run_id, 5)
    started.append(again)
    assert seen(again).index.num_steps == 6, "the way back from before the bug"


@pytest.mark.slow
def test_what_cannot_be_served_is_refused_at_the_door_and_the_rest_goes_on(started: list[LiveRun]) -> None:
    arrivals = [
        *workloads.make(workloads.CUSTOM, TRAFFIC, ["Hello", "word " * 200]),
        *workloads.make("chat", TRAFFIC._replace(num_requests=1)),
    ]
    run = registry.start(LiveSettings(num_blocks=30), arrivals, "refused")
    started.append(run)
    process = registry.process_of(run.run_id)
    assert process is not None
    wait_until(lambda: len(process.answers) == 2)
    assert (
        process.refused.keys() == {"prompt-1"} and "the whole KV cache has 29" in process.refused["prompt-1"]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"adapters": ("shop-lora-ja", "shop-lora-support")},
        {"preemption": "swap", "num_blocks": 48},
        {"speculation": "ngram"},
        {"speculation": "shop-draft", "num_blocks": 60},
        {"speculation": "shop-eagle", "num_blocks": 60},
        {"quantization": "int8", "kv_cache_dtype": "int8_per_token_head"},
        {"policy": "priority", "prefix_caching": False},
        {"chunked_prefill": False, "max_num_batched_tokens": 2048},
    ],
)
def test_every_knob_starts_runs_and_replays(started: list[LiveRun], changes: dict[str, object]) -> None:
    settings = LiveSettings(**{"num_blocks": 48, **changes})
    important = settings.policy == "priority"
    traffic = TRAFFIC._replace(answer_tokens=80, priorities=important, adapters=settings.adapters)
    run = registry.start(settings, workloads.make("bursts", traffic), "knob")
    started.append(run)
    process = registry.process_of(run.run_id)
    assert process is not None
    wait_until(lambda: len(process.answers) == traffic.num_requests)
    view = seen(run)
    assert not view.reader(0).problems and not view.warnings
    again, how = registry.rewind(run.run_id, view.index.num_steps // 2)
    started.append(again)
    assert how["differs_at"] is None and not seen(again).reader(0).problems


@pytest.mark.slow
def test_no_engine_outlives_the_workbench_however_that_ends() -> None:
    code = (
        "from app.debugger.live import registry, workloads\n"
        "from app.debugger.live.settings import LiveSettings\n"
        "arrivals = workloads.make('chat', workloads.Traffic(4, 90, True, 0, False, ()))\n"
        "run = registry.start(LiveSettings(), arrivals, 'chat', steps_per_s=1.0)\n"
        "print(run.info()['pid'], flush=True)\n"
        "input()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert parent.stdout is not None
    engine = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_until(lambda: not is_alive(engine))


def is_alive(pid: int) -> bool:
    """Whether a process runs; False for one that has ended and is not reaped yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

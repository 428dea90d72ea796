"""The engine as a whole: outputs do not depend on how requests are divided into steps."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from engine.config import ConfigError
from engine.core.errors import EngineDeadError
from engine.core.kv_events import PrefixIndex
from engine.core.observer import StepObserver
from engine.core.request import Request
from engine.core.sched_output import ModelRunnerOutput, SchedulerOutput
from engine.engine_core import EngineCore
from engine.exec.uniproc import worker_of
from tests.engine.harness import EOS, VOCAB_SIZE, free_slots, request, run, tokens

MakeEngine = Callable[..., EngineCore]
WORKLOAD_SIZE = 24


def workload() -> list[Request]:
    """Prompts of 1 to 40 tokens, some sharing a prefix; every other request greedy, the rest at T=1."""
    rng = random.Random(0)
    shared = [rng.randrange(2, VOCAB_SIZE) for _ in range(13)]
    requests = []
    for index in range(WORKLOAD_SIZE):
        prompt = [rng.randrange(2, VOCAB_SIZE) for _ in range(rng.randint(1, 40))]
        prompt = shared + prompt if index % 3 == 0 else prompt
        temperature = float(index % 2)
        requests.append(request(str(index), prompt, temperature=temperature, seed=index, max_tokens=12))
    return requests


@pytest.fixture(scope="module")
def said_alone(make_engine: MakeEngine) -> dict[str, list[int]]:
    """Return the tokens of each request of the workload, run alone."""
    engine = make_engine()
    said: dict[str, list[int]] = {}
    for item in workload():
        said |= tokens(run(engine, [item]))
    return said


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_batched_tokens": 7, "max_num_seqs": 7},
        {"num_gpu_blocks_override": 24},
        {"long_prefill_token_threshold": 5},
        {"enable_prefix_caching": False},
        {"scheduling_policy": "priority"},
        {"enable_chunked_prefill": False},
        {"block_size": 1},
        {"attention_backend": "reference"},
    ],
    ids=lambda settings: ",".join(settings) or "one batch",
)
def test_a_request_says_the_same_alone_and_in_any_batch(
    make_engine: MakeEngine, said_alone: dict[str, list[int]], settings: dict
) -> None:
    engine = make_engine(**settings)
    outputs = run(engine, workload())
    assert tokens(outputs) == said_alone
    if "num_gpu_blocks_override" in settings:
        assert sum(outs[-1].num_preemptions for outs in outputs.values()) > 0, "nothing was preempted"
    assert engine.scheduler.kv.usage == 0


def test_an_engine_dies_with_its_cause_and_tells_every_request(make_engine: MakeEngine) -> None:
    engine = make_engine()
    for item in workload():
        engine.add_request(item)
    engine.step()

    def fail(out: SchedulerOutput, _bitmask: Any) -> ModelRunnerOutput:
        raise ZeroDivisionError("a bug in a kernel")

    engine.executor.submit = fail
    outputs = engine.step()
    assert {output.request_id for output in outputs} == {str(index) for index in range(WORKLOAD_SIZE)}
    assert {output.finish_reason for output in outputs} == {"error"}
    assert all("a bug in a kernel" in output.error for output in outputs)
    assert engine.is_dead and not engine.has_unfinished()
    for use in (engine.step, lambda: engine.add_request(request("late", [5]))):
        with pytest.raises(EngineDeadError, match="a bug in a kernel") as caught:
            use()
        assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_finished_requests_leave_their_slots_and_blocks(make_engine: MakeEngine) -> None:
    engine = make_engine()
    run(engine, workload())
    engine.step()  # the worker hears of the last finished ones with the next step
    assert free_slots(engine) == 64
    assert engine.reset_prefix_cache()


def test_eos_ends_a_request_unless_it_is_ignored(make_engine: MakeEngine) -> None:
    bias = {EOS: 100.0}
    outputs = run(
        make_engine(),
        [
            request("stops", [5, 6], logit_bias=bias, ignore_eos=False),
            request("goes on", [5, 6], logit_bias=bias, ignore_eos=True),
        ],
    )
    assert tokens(outputs) == {"stops": [EOS], "goes on": [EOS] * 8}
    assert outputs["stops"][-1].finish_reason == "stop"
    assert outputs["goes on"][-1].finish_reason == "length"


def test_an_engine_tells_what_its_cache_holds_and_that_it_was_reset(make_engine: MakeEngine) -> None:
    engine, index = make_engine(kv_events_config={"publisher": "memory"}), PrefixIndex()
    run(engine, workload())
    for filled in (True, False):
        for batch in engine.take_kv_events():
            index.apply(batch)
        assert index.hashes == engine.scheduler.kv.pool.cached.keys()
        assert bool(index.hashes) == filled
        assert engine.reset_prefix_cache()


def test_kv_events_are_refused_where_they_could_not_be_told_in_full(make_engine: MakeEngine) -> None:
    feed = {"publisher": "memory"}
    with pytest.raises(ConfigError, match="needs enable_prefix_caching"):
        make_engine(kv_events_config=feed, enable_prefix_caching=False)
    with pytest.raises(ConfigError, match="start each engine with its own feed"):
        make_engine(kv_events_config=feed, data_parallel_size=2)
    with pytest.raises(ConfigError, match="KV events are not collected"):
        make_engine().take_kv_events()


class Watcher(StepObserver):
    """Record what the engine does."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def add(self, request: Request) -> None:
        self.seen.append(f"add {request.request_id}")

    def abort(self, request_ids: Iterable[str]) -> None:
        self.seen.append(f"abort {','.join(request_ids)}")

    def step(self, out: SchedulerOutput, result: Any, outputs: list[Any], duration_s: float) -> None:
        assert duration_s > 0
        self.seen.append(f"step {out.step}: {sum(len(output.new_token_ids) for output in outputs)}")

    def reset(self) -> None:
        self.seen.append("reset")

    def close(self) -> None:
        self.seen.append("close")


def test_an_observer_sees_all_that_happens_in_order(make_engine: MakeEngine) -> None:
    engine = make_engine()
    watcher = Watcher()
    engine.observers.append(watcher)
    engine.add_request(request("a", [3, 4, 5], max_tokens=2))
    engine.add_request(request("b", [6, 7], max_tokens=9))
    engine.step()
    engine.step()
    engine.abort(["b", "unknown"])
    assert engine.reset_prefix_cache()
    engine.shutdown()
    assert watcher.seen == ["add a", "add b", "step 0: 2", "step 1: 2", "abort b", "reset", "close"]


def test_an_observer_can_hold_the_engine(make_engine: MakeEngine) -> None:
    engine = make_engine()

    class Brake(StepObserver):
        is_on = True

        def before_step(self) -> list[Any] | None:
            return [] if self.is_on else None

    brake = Brake()
    engine.observers.append(brake)
    engine.add_request(request("a", [3, 4, 5], max_tokens=2))
    assert engine.step() == [] and engine.has_unfinished()
    brake.is_on = False
    assert [output.request_id for output in engine.step()] == ["a"]


def test_an_idle_engine_gives_the_memory_of_large_steps_back(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.engine_core.LARGE_STEP_TOKENS", 20)
    engine = make_engine()
    released: list[int] = []
    worker = worker_of(engine)
    monkeypatch.setattr(worker, "release_memory", lambda: released.append(len(engine.scheduler.requests)))
    run(engine, [request("small", range(2, 12))])
    assert not released
    run(engine, [request("large", range(2, 30)), request("longer", range(30, 35), max_tokens=20)])
    assert released == [0]
    run(engine, [request("small again", range(2, 12))])
    assert released == [0]

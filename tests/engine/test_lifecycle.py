"""Requests that come, go, fail and share: what each leaves behind, and what it must not touch."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.core.errors import EngineDeadError, RequestRejected
from engine.core.request import Request, RequestStatus
from engine.core.sched_output import ModelRunnerOutput
from engine.core.scheduler import Scheduler
from engine.engine_core import EngineCore
from engine.worker.model_input import ModelInput
from tests.engine.harness import VOCAB_SIZE, free_slots, request, run, tokens

MakeEngine = Callable[..., EngineCore]


def random_prompt(length: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(2, VOCAB_SIZE) for _ in range(length)]


@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8, 9, 31, 32, 33])
def test_a_repeated_prompt_hits_the_cache_and_says_the_same(make_engine: MakeEngine, length: int) -> None:
    engine = make_engine(block_size=4)
    prompt = random_prompt(length, seed=length)
    first = run(engine, [request("first", prompt)])
    again = run(engine, [request("again", prompt)])
    assert tokens(first)["first"] == tokens(again)["again"]
    assert first["first"][0].num_cached_tokens == 0
    assert again["again"][0].num_cached_tokens == (length - 1) // 4 * 4  # one token at least is computed


def test_blocks_and_slots_of_the_finished_serve_the_next_as_if_new(make_engine: MakeEngine) -> None:
    worn = make_engine(num_gpu_blocks_override=24, max_num_seqs=3, enable_prefix_caching=False)
    for round_ in range(6):
        work = [request(str(i), random_prompt(5 + 7 * i, seed=10 * round_ + i)) for i in range(3)]
        copies = [request(item.request_id, item.prompt_token_ids) for item in work]
        fresh = make_engine(num_gpu_blocks_override=24, max_num_seqs=3, enable_prefix_caching=False)
        assert tokens(run(worn, work)) == tokens(run(fresh, copies))


def test_an_abort_frees_its_slot_and_leaves_the_others_alone(make_engine: MakeEngine) -> None:
    def work() -> list[Request]:
        return [request(str(i), random_prompt(9 + i, seed=i), temperature=1.0, seed=i) for i in range(6)]

    expected = tokens(run(make_engine(), work()))
    engine = make_engine()
    for item in work():
        engine.add_request(item)
    said: dict[str, list[int]] = {str(i): [] for i in range(6)}
    aborted = {0: ["5"], 2: ["1", "1", "unknown"], 4: ["3"]}
    for step in range(100):
        for output in engine.abort(aborted.get(step, [])):
            assert (output.finish_reason, output.new_token_ids) == ("abort", [])
        if not engine.has_unfinished():
            break
        for output in engine.step():
            said[output.request_id] += output.new_token_ids
    assert said == expected | {"5": [], "1": expected["1"][:2], "3": expected["3"][:4]}
    engine.step()
    assert free_slots(engine) == 64 and engine.scheduler.kv.usage == 0


def test_a_preempted_request_holds_no_slot_while_it_waits(make_engine: MakeEngine) -> None:
    engine = make_engine(num_gpu_blocks_override=16)
    for i in range(4):
        engine.add_request(request(str(i), random_prompt(9, seed=i), max_tokens=30))
    preempted: list[str] = []
    while not preempted:
        engine.step()
        live = engine.scheduler.requests.values()
        preempted = [item.request_id for item in live if item.status is RequestStatus.PREEMPTED]
    engine.abort(preempted)
    while engine.has_unfinished():
        engine.step()
    engine.step()
    assert free_slots(engine) == 64


def test_a_used_id_can_be_used_again_right_after_an_abort(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.add_request(request("same", random_prompt(9, seed=1)))
    engine.step()
    engine.abort(["same"])
    expected = tokens(run(make_engine(), [request("same", random_prompt(6, seed=2))]))
    assert tokens(run(engine, [request("same", random_prompt(6, seed=2))])) == expected


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_logits_end_one_request_and_no_other(make_engine: MakeEngine, temperature: float) -> None:
    def work() -> list[Request]:
        return [request(str(i), random_prompt(9, seed=i), temperature=temperature, seed=i) for i in range(4)]

    expected = tokens(run(make_engine(), work()))
    engine = make_engine()
    runner = engine.executor.worker.runner
    sample = runner._sample

    def poisoned(batch: ModelInput, logits: Tensor, bitmask: object) -> ModelRunnerOutput:
        slot = runner.state.slot_of.get("2")
        if slot is not None and runner.state.num_tokens[slot] == 9 + 3:
            logits[2] = math.nan
        return sample(batch, logits, bitmask)

    runner._sample = poisoned  # also what a replayed step ends with
    outputs = run(engine, work())
    said = tokens(outputs)
    assert said.pop("2") == expected.pop("2")[:3] and said == expected
    last = outputs["2"][-1]
    assert last.finish_reason == "error" and "NaN" in last.error
    engine.step()
    assert free_slots(engine) == 64 and engine.scheduler.kv.usage == 0


def test_a_request_ends_at_max_model_len(make_engine: MakeEngine) -> None:
    engine = make_engine(max_model_len=32)
    outputs = run(engine, [request("fills", random_prompt(30, seed=1), max_tokens=None)])
    assert len(tokens(outputs)["fills"]) == 2 and outputs["fills"][-1].finish_reason == "length"
    with pytest.raises(RequestRejected, match="max_model_len"):
        engine.add_request(request("too long", random_prompt(32, seed=1)))


def test_an_interrupted_step_leaves_an_engine_that_works(make_engine: MakeEngine) -> None:
    engine = make_engine()
    work = [request(str(i), random_prompt(9, seed=i)) for i in range(3)]
    for item in work:
        engine.add_request(item)
    engine.step()
    submit = engine.executor.submit

    def interrupt(*_step: object) -> None:
        raise KeyboardInterrupt

    engine.executor.submit = interrupt
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    engine.executor.submit = submit
    assert not engine.has_unfinished()
    again = [request(str(i), random_prompt(9, seed=i)) for i in range(3)]
    expected = [request(str(i), random_prompt(9, seed=i)) for i in range(3)]
    assert tokens(run(engine, again)) == tokens(run(make_engine(), expected))


def test_an_interrupt_in_the_middle_of_a_change_stays_an_interrupt_and_ends_the_engine(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine()
    engine.add_request(request("a", random_prompt(9, seed=1)))

    def interrupt() -> None:
        engine.scheduler.waiting.pop()  # taken from the queue, and not yet where it runs
        raise KeyboardInterrupt

    engine.scheduler.schedule = interrupt
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert not engine.has_unfinished()
    with pytest.raises(EngineDeadError, match="interrupted in the middle of a step"):
        engine.step()


def test_preemption_keeps_penalties_seeds_bans_and_logprobs(make_engine: MakeEngine) -> None:
    def work() -> list[Request]:
        rich = {"frequency_penalty": 0.7, "presence_penalty": 0.3, "repetition_penalty": 1.2, "logprobs": 2}
        rich |= {"min_tokens": 10, "stop_token_ids": [5, 6, 7], "temperature": 0.9, "max_tokens": 24}
        bans = {"bad_words_token_ids": [[9], [11, 12]]}
        return [request(str(i), random_prompt(11, seed=i), seed=i, **rich, **bans) for i in range(5)]

    roomy = run(make_engine(), work())
    tight = run(make_engine(num_gpu_blocks_override=16, max_num_batched_tokens=64), work())
    assert sum(outputs[-1].num_preemptions for outputs in tight.values()) >= 2
    assert tokens(tight) == tokens(roomy)
    for name, outputs in roomy.items():
        expected = [entry for output in outputs for entry in output.logprobs or ()]
        found = [entry for output in tight[name] for entry in output.logprobs or ()]
        assert [entry.token_ids for entry in found] == [entry.token_ids for entry in expected]
        for one, other in zip(found, expected, strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs oneDNN's matrix product")
def test_logits_have_the_same_bits_alone_and_in_a_batch(make_engine: MakeEngine) -> None:
    def logits_of(engine: EngineCore, work: list[Request]) -> dict[tuple[str, int], Tensor]:
        runner = engine.executor.worker.runner
        found: dict[tuple[str, int], Tensor] = {}
        sample = runner._sample

        def recorded(batch: ModelInput, logits: Tensor, bitmask: object) -> ModelRunnerOutput:
            for row, name in zip(logits, order, strict=False):
                found[name, len(said[name])] = row.clone()
            return sample(batch, logits, bitmask)

        runner._sample = recorded
        said: dict[str, list[int]] = {item.request_id: [] for item in work}
        order = [item.request_id for item in work]
        for item in work:
            engine.add_request(item)
        while engine.has_unfinished():
            for output in engine.step():
                said[output.request_id] += output.new_token_ids
        runner._sample = sample
        return found

    def work() -> list[Request]:
        return [request(str(i), random_prompt(10, seed=i), max_tokens=6) for i in range(33)]

    together = logits_of(make_engine(), work())
    single = make_engine()
    for item in work()[::8]:
        for key, row in logits_of(single, [item]).items():
            assert torch.equal(row, together[key]), f"request {key[0]}, token {key[1]}"


class CountingScheduler(Scheduler):
    """A user's own: a dotted path to it must be enough."""

    steps = 0

    def schedule(self):  # noqa: ANN201
        CountingScheduler.steps += 1
        return super().schedule()


def test_scheduler_and_trace_are_chosen_by_name(make_engine: MakeEngine, tmp_path: Path) -> None:
    trace = tmp_path / "run.itrace"
    engine = make_engine(scheduler_cls=f"{__name__}:CountingScheduler", trace=str(trace))
    run(engine, [request("a", [5, 6, 7])])
    assert CountingScheduler.steps == 8
    engine.shutdown()
    assert trace.stat().st_size > 100

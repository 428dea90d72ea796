"""The engine core in a process of its own does what the core in this process does."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from threading import Thread
from typing import Any

import pytest

from engine.async_llm import AsyncLLM
from engine.config import EngineArgs
from engine.core.errors import EngineDeadError
from engine.core.request import Request
from engine.core.sched_output import EngineCoreOutput
from engine.exec.core_process import CoreProcess
from engine.frontend.llm_engine import LLMEngine
from engine.frontend.turns import AT_ONCE, PORTION, QUEUED
from engine.sampling_params import RequestOutputKind, SamplingParams
from tests.waiting import one_turn, until

pytestmark = pytest.mark.slow
ARGS = EngineArgs(
    model="shop", max_num_seqs=4, num_gpu_blocks_override=128, enable_lora=True, max_lora_rank=16
)


@pytest.fixture(scope="module")
def remote() -> Iterator[AsyncLLM]:
    with AsyncLLM(ARGS, own_process=True) as llm:
        yield llm


def params(max_tokens: int) -> SamplingParams:
    return SamplingParams(
        max_tokens=max_tokens, temperature=0, ignore_eos=True, output_kind=RequestOutputKind.DELTA
    )


async def tokens(
    llm: AsyncLLM, prompt: str, max_tokens: int = 24, found: list[int] | None = None
) -> list[int]:
    """Return the tokens of a request. found: they appear there one by one."""
    found = [] if found is None else found
    async for output in llm.generate(prompt, params(max_tokens)):
        found += output.outputs[0].token_ids
    return found


def test_tokens_are_those_of_an_engine_in_this_process(remote: AsyncLLM) -> None:
    prompts = [f"Order number {n}, please" for n in range(12)]

    async def run(llm: AsyncLLM) -> list[list[int]]:
        return await asyncio.gather(*(tokens(llm, prompt) for prompt in prompts))

    with AsyncLLM(ARGS) as local:
        assert asyncio.run(run(remote)) == asyncio.run(run(local))


def test_clients_that_leave_give_their_blocks_back(remote: AsyncLLM) -> None:
    async def run() -> None:
        expected = await tokens(remote, "Hello")
        for leaves_after in range(10):
            found: list[int] = []
            leaving = asyncio.create_task(tokens(remote, "The way", 400, found))
            await one_turn()  # it has submitted
            await until(lambda found=found, number=leaves_after: len(found) >= number)
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
            assert await tokens(remote, "Hello") == expected
        assert await until(remote.reset_prefix_cache)

    asyncio.run(run())


def test_the_id_of_an_aborted_request_can_be_used_again() -> None:
    engine = LLMEngine.from_args(ARGS, own_process=True)

    def submit(prompt: str, max_tokens: int) -> None:
        engine.add(engine.input_processor.process("same", prompt, params(max_tokens)))

    def finish() -> list[int]:
        found: list[int] = []
        while engine.has_unfinished():
            for output in engine.step():
                found += output.outputs[0].token_ids
        return found

    submit("Hello", 24)
    expected = finish()
    for _ in range(10):
        submit("The way", 400)
        engine.step()
        engine.abort(["same"])
        submit("Hello", 24)
        assert finish() == expected
    engine.shutdown()


def test_a_rejected_request_and_an_unknown_adapter_leave_the_engine_alive(remote: AsyncLLM) -> None:
    async def run() -> None:
        with pytest.raises(ValueError, match="max_model_len"):
            await tokens(remote, "a " * 20_000)
        with pytest.raises(ValueError, match="adapter"):
            await remote.load_lora_adapter("x", "/nowhere")
        await remote.load_lora_adapter("recommend", "shop-lora-recommend")
        await remote.unload_lora_adapter("recommend")
        assert len(await tokens(remote, "Hello", 3)) == 3

    asyncio.run(run())


def test_clients_of_a_killed_engine_are_told_and_later_ones_too() -> None:
    llm = AsyncLLM(ARGS, own_process=True)
    core = llm.llm_engine.engine_core
    assert isinstance(core, CoreProcess)

    async def run() -> None:
        found: list[int] = []
        running = asyncio.create_task(tokens(llm, "Hello", 400, found))
        await until(lambda: found)
        os.kill(core.pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            await running
        with pytest.raises(EngineDeadError):
            await tokens(llm, "Hello")

    asyncio.run(run())
    assert llm.errored
    llm.shutdown()


def test_an_idle_engine_that_is_killed_is_noticed_at_once_and_one_that_sleeps_is_not_missed() -> None:
    llm = AsyncLLM(ARGS, own_process=True)
    core = llm.llm_engine.engine_core
    assert isinstance(core, CoreProcess)

    async def run() -> None:
        await llm.sleep()
        await llm.wake_up()
        assert len(await tokens(llm, "Hello", 3)) == 3
        os.kill(core.pid, signal.SIGKILL)
        await until(lambda: llm.errored)
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            await llm.check_health()

    asyncio.run(run())
    llm.shutdown()


@pytest.mark.parametrize(("mode", "reason"), [("wait", "length"), ("abort", "abort")])
def test_an_engine_that_goes_to_sleep_sees_a_wide_request_that_has_just_begun(mode: Any, reason: str) -> None:
    many = SamplingParams(n=64, max_tokens=40, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY)

    async def run(llm: AsyncLLM) -> None:
        stream = llm.generate("Hello", many)
        begun = asyncio.create_task(anext(stream))
        await one_turn()
        await llm.sleep(1, mode)
        assert {output.finish_reason for output in (await begun).outputs} == {reason}

    with AsyncLLM(ARGS, own_process=True) as llm:
        asyncio.run(run(llm))


def test_settings_that_cannot_work_are_the_error_of_the_start() -> None:
    with pytest.raises(ValueError, match="blocks"):
        AsyncLLM(EngineArgs(model="shop", num_gpu_blocks_override=1, max_model_len=4096), own_process=True)


def test_more_requests_than_a_pipe_holds_are_taken_while_outputs_wait() -> None:
    """Neither process may wait for the other to read: requests go out while no output is fetched."""
    engine = LLMEngine.from_args(EngineArgs(model="shop", max_num_seqs=64), own_process=True)
    try:
        prompt = {"prompt_token_ids": [300] * 200}

        def submit() -> None:
            for number in range(1500):
                engine.add(engine.input_processor.process(f"r{number}", prompt, params(4)))
                engine.engine_core._send_requests()  # as `step` would, which reads outputs, too

        submitting = Thread(target=submit, daemon=True)
        submitting.start()
        submitting.join(120)
        assert not submitting.is_alive()
        ended = 0
        while engine.has_unfinished():
            ended += sum(output.finished for output in engine.step())
        assert ended == 1500
    finally:
        engine.engine_core.shutdown()


def test_steps_run_while_many_completions_of_one_request_are_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    number, queued = 8 * PORTION // QUEUED, [0]
    with AsyncLLM(EngineArgs(model="shop", max_num_seqs=64), own_process=True) as llm:
        core = llm.llm_engine.engine_core
        add, step = core.add_request, core.step

        def count_add(request: Request) -> None:
            queued[-1] += 1
            add(request)

        def count_step() -> list[EngineCoreOutput]:
            outputs = step()
            if core.last_step is not None:  # not only woken by a command
                queued.append(0)
            return outputs

        monkeypatch.setattr(core, "add_request", count_add)
        monkeypatch.setattr(core, "step", count_step)

        async def run() -> None:
            many = SamplingParams(n=number, max_tokens=2, output_kind=RequestOutputKind.FINAL_ONLY)
            wide = asyncio.create_task(anext(llm.generate("Hello", many)))
            await asyncio.gather(
                *(tokens(llm, f"Order {each}") for each in range(40))
            )  # commands wake the thread
            assert len((await wide).outputs) == number

        asyncio.run(run())
    assert sum(queued) == number + 40 and max(queued) <= PORTION // QUEUED + AT_ONCE


def test_the_parent_logs_the_backend_that_the_child_chose_and_why(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="engine.exec.core_process"), AsyncLLM(ARGS, own_process=True):
        pass
    assert "attention backend " in caplog.text and "the fastest that serves this model on" in caplog.text

"""Many clients on one engine. `Gate` decides when a step may go on, so that nothing depends on time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from engine import LLM, AsyncLLM, EngineArgs, RequestOutput, SamplingParams
from engine.async_llm import OutputStream
from engine.core.errors import EngineDeadError
from engine.core.request import Request
from engine.core.sched_output import EngineCoreOutput, ModelRunnerOutput, SchedulerOutput
from engine.frontend.input_processor import InvalidRequestError
from engine.frontend.turns import AT_ONCE, PORTION, QUEUED, TOKENS
from engine.sampling_params import RequestOutputKind
from tests.waiting import one_turn

DELTA = RequestOutputKind.DELTA
WIDE = 64
"""Completions of a request that is submitted in one turn of the event loop, as one with n=1 is."""


@pytest.fixture
def async_llm(settings: dict[str, Any]) -> Iterator[AsyncLLM]:
    with AsyncLLM.from_engine_args(EngineArgs(**settings)) as async_llm:
        yield async_llm
        if not async_llm.errored:
            asyncio.run(assert_idle(async_llm))


async def assert_idle(async_llm: AsyncLLM) -> None:
    """Check that no state of any client is left, between two steps, in the engine's thread."""

    def inspect() -> tuple[int, ...]:
        core = async_llm.llm_engine.engine_core
        core.scheduler.check_integrity()
        usage = core.scheduler.kv.pool.num_usable - len(core.scheduler.kv.pool.free)
        processor = async_llm.llm_engine.output_processor
        return len(core.scheduler.requests), len(processor), len(async_llm._streams), usage

    assert await async_llm._call(inspect) == (0, 0, 0, 0)


class Gate:
    """Stands in front of the model: every step waits here until the test lets it pass."""

    def __init__(self, async_llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[set[str]] = []
        """Ids in each step that has arrived."""
        self.failure: Exception | None = None
        self._arrivals = threading.Semaphore(0)
        self._passes = threading.Semaphore(0)
        self._is_open = False
        executor = async_llm.llm_engine.engine_core.executor
        self._execute = executor.submit
        monkeypatch.setattr(executor, "submit", self._stand)

    def _stand(self, out: SchedulerOutput, _bitmask: Any) -> ModelRunnerOutput:
        self.steps.append({row.request_id for row in out.scheduled})
        self._arrivals.release()
        if not self._is_open:
            self._passes.acquire()
        if self.failure is not None:
            raise self.failure
        return self._execute(out)

    async def arrival(self) -> set[str]:
        """Wait until a step is in flight; the ids in it."""
        await asyncio.to_thread(self._arrivals.acquire)
        return self.steps[-1]

    def let_pass(self) -> None:
        self._passes.release()

    def open(self) -> None:
        self._is_open = True
        self._passes.release()


@pytest.fixture
def gate(async_llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(async_llm, monkeypatch)
    yield gate
    gate.open()


def params(max_tokens: int = 8, **others: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True, **others)


async def last(
    async_llm: AsyncLLM, prompt: Any, sampling_params: SamplingParams, request_id: str | None = None
) -> RequestOutput:
    """Read a request to its end. A client that is forgotten fails here instead of waiting for ever."""
    async with asyncio.timeout(60):
        async for output in async_llm.generate(prompt, sampling_params, request_id):
            final = output
    return final


async def test_twenty_clients_get_what_each_would_get_alone(
    async_llm: AsyncLLM, settings: dict[str, Any]
) -> None:
    prompts = [[10 + i, 20, 30 + i % 3] * (1 + i % 5) for i in range(20)]
    all_params = [params(4 + i % 7, seed=i, n=1 + i % 2) for i in range(20)]
    together = await asyncio.gather(
        *(last(async_llm, p, s) for p, s in zip(prompts, all_params, strict=True))
    )
    with LLM(**settings) as llm:
        alone = [llm.generate([p], s)[0] for p, s in zip(prompts, all_params, strict=True)]
    assert [o.outputs for o in together] == [o.outputs for o in alone]
    for output in together:
        metrics = output.metrics
        assert metrics.e2e_latency >= metrics.first_token_latency >= metrics.queued_time >= 0


async def test_a_delta_stream_adds_up_whatever_was_merged(async_llm: AsyncLLM) -> None:
    whole = await last(async_llm, "hello", params(40, seed=1))
    deltas = [d async for d in async_llm.generate("hello", params(40, seed=1, output_kind=DELTA))]
    assert "".join(d.outputs[0].text for d in deltas) == whole.outputs[0].text


async def test_a_cancelled_client_is_out_of_the_next_step(async_llm: AsyncLLM, gate: Gate) -> None:
    leaver = asyncio.create_task(last(async_llm, "hello", params(100), "leaver"))
    stayer = asyncio.create_task(last(async_llm, "the cat", params(5), "stayer"))
    while await gate.arrival() != {"leaver", "stayer"}:
        gate.let_pass()
    leaver.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaver
    gate.let_pass()  # the step that was in flight still has it
    assert await gate.arrival() == {"stayer"}
    assert list(async_llm.llm_engine.engine_core.scheduler.requests) == ["stayer"]
    gate.open()
    assert (await stayer).outputs[0].finish_reason == "length"


async def test_leaving_the_loop_aborts_the_request(async_llm: AsyncLLM) -> None:
    stream = async_llm.generate("hello", params(100))
    async for _ in stream:
        break
    await stream.aclose()
    await assert_idle(async_llm)


@pytest.mark.parametrize("n", [2, WIDE])
async def test_a_client_cancelled_before_its_first_step_is_never_computed(
    async_llm: AsyncLLM, gate: Gate, n: int
) -> None:
    stayer = asyncio.create_task(last(async_llm, "the cat", params(3), "stayer"))
    await gate.arrival()
    early = asyncio.create_task(last(async_llm, "hello", params(100, n=n), "early"))
    await one_turn()  # it has submitted
    early.cancel()
    with pytest.raises(asyncio.CancelledError):
        await early
    gate.open()
    await stayer
    assert set.union(*gate.steps) == {"stayer"}


async def test_cancelled_and_patient_clients_in_any_mixture_leave_nothing(async_llm: AsyncLLM) -> None:
    async def client(number: int) -> int:
        count = 0
        stream = async_llm.generate([10 + number] * (1 + number % 9), params(20, n=1 + number % 3))
        async for _ in stream:
            count += 1
            if number % 2 and count == 1 + number % 4:
                break
        await stream.aclose()
        return count

    counts = await asyncio.gather(*(client(number) for number in range(20)))
    assert min(counts) > 0
    await assert_idle(async_llm)


async def test_abort_ends_a_stream_with_what_it_has(async_llm: AsyncLLM, gate: Gate) -> None:
    reader = asyncio.create_task(last(async_llm, "hello", params(100, n=2), "r"))
    for _ in range(4):
        await gate.arrival()
        gate.let_pass()
    await async_llm.abort("r")
    await async_llm.abort(["r", "unknown"])
    gate.open()
    output = await reader
    assert output.finished and {c.finish_reason for c in output.outputs} == {"abort"}
    assert all(0 < len(c.token_ids) < 100 for c in output.outputs)


@pytest.mark.parametrize("n", [1, WIDE])
async def test_an_abort_reaches_a_request_from_the_first_turn_of_its_client(
    async_llm: AsyncLLM, gate: Gate, n: int
) -> None:
    reader = asyncio.create_task(last(async_llm, "hello", params(40, n=n), "r"))
    await one_turn()
    await async_llm.abort("r")
    gate.open()
    assert {output.finish_reason for output in (await reader).outputs} == {"abort"}


async def test_an_abort_in_the_step_that_finishes_comes_too_late(async_llm: AsyncLLM, gate: Gate) -> None:
    reader = asyncio.create_task(last(async_llm, "hello", params(2), "r"))
    await gate.arrival()
    gate.let_pass()
    await gate.arrival()  # its last step is in flight
    await async_llm.abort("r")
    gate.open()
    assert (await reader).outputs[0].finish_reason == "length"


def counts_between_steps(async_llm: AsyncLLM, patch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """Return, growing, how many completions the core queued and aborted before each of its steps."""
    core = async_llm.llm_engine.engine_core
    add, abort, step = core.add_request, core.abort, core.step
    found = {"queued": [0], "aborted": [0]}

    def count_step() -> list[EngineCoreOutput]:
        for counts in found.values():
            counts.append(0)
        return step()

    def count_add(request: Request) -> None:
        found["queued"][-1] += 1
        add(request)

    def count_abort(request_ids: list[str]) -> list[EngineCoreOutput]:
        found["aborted"][-1] += len(outputs := abort(request_ids))
        return outputs

    for name, function in (("step", count_step), ("add_request", count_add), ("abort", count_abort)):
        patch.setattr(core, name, function)
    return found


MOST_QUEUED = PORTION // QUEUED
MANY = 6 * MOST_QUEUED + 5


async def test_steps_run_while_many_completions_of_one_request_are_queued(
    async_llm: AsyncLLM, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """n=16384 once kept the engine's thread for 0.5 to 9 s, in which other streams got no token."""
    counts = counts_between_steps(async_llm, monkeypatch)["queued"]
    others = asyncio.create_task(last(async_llm, "the cat", params(40, seed=2), "other"))
    wide = await last(async_llm, "hello", params(2, n=MANY, seed=1))
    assert sum(counts) == MANY + 1 and max(counts) <= MOST_QUEUED + AT_ONCE
    with LLM(**settings) as llm:
        assert wide.outputs == llm.generate(["hello"], params(2, n=MANY, seed=1))[0].outputs
        assert (await others).outputs == llm.generate(["the cat"], params(40, seed=2))[0].outputs


async def test_steps_run_while_many_prompts_are_queued_and_long_ones_count_more(
    async_llm: AsyncLLM, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = counts_between_steps(async_llm, monkeypatch)["queued"]
    first = asyncio.create_task(last(async_llm, "the cat", params(1)))
    await gate.arrival()  # all others are submitted while it is computed
    long = [5] * 2 * TOKENS
    many = [asyncio.create_task(last(async_llm, long, params(1, seed=i))) for i in range(MOST_QUEUED + 50)]
    await one_turn()
    gate.open()
    await asyncio.gather(first, *many)
    assert sum(counts) == MOST_QUEUED + 51 and max(counts) == -(-PORTION // (QUEUED + 2))


async def test_an_abort_ends_what_is_queued_and_keeps_the_rest_out(async_llm: AsyncLLM, gate: Gate) -> None:
    requests = async_llm.llm_engine.engine_core.scheduler.requests
    reader = asyncio.create_task(last(async_llm, "hello", params(40, n=MANY), "r"))
    await gate.arrival()
    num_queued = len(requests)
    await async_llm.abort("r")
    gate.open()
    output = await reader
    assert {each.finish_reason for each in output.outputs} == {"abort"}
    assert len(output.outputs) == num_queued <= MOST_QUEUED + AT_ONCE
    assert (await last(async_llm, "hello", params(3), "r")).outputs[0].finish_reason == "length"


@pytest.mark.parametrize("leaves", [True, False])
async def test_steps_run_while_many_completions_are_aborted(
    async_llm: AsyncLLM, gate: Gate, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    counts = counts_between_steps(async_llm, monkeypatch)
    number = 3 * PORTION
    reader = asyncio.create_task(last(async_llm, "hello", params(200, n=number), "r"))
    while sum(counts["queued"]) < number:
        await gate.arrival()
        gate.let_pass()
    if leaves:
        reader.cancel()
    else:
        await async_llm.abort("r")
    gate.open()
    await asyncio.gather(reader, return_exceptions=True)
    await assert_idle(async_llm)
    assert max(counts["aborted"]) <= PORTION and sum(counts["aborted"]) > 2 * PORTION


async def test_abort_of_what_has_ended_or_never_was_does_nothing(async_llm: AsyncLLM) -> None:
    await last(async_llm, "hello", params(), "r")
    await async_llm.abort(["r", "unknown"])
    assert (await last(async_llm, "hello", params(), "r")).outputs[0].finish_reason == "length"


async def test_a_slow_reader_delays_nobody_and_misses_nothing(async_llm: AsyncLLM) -> None:
    whole = await last(async_llm, "hello", params(20, seed=1))
    slow = async_llm.generate("hello", params(20, seed=1, output_kind=DELTA))
    first = await anext(slow)
    await last(async_llm, "the cat", params(60))  # meanwhile the slow one's request has ended
    rest = [output async for output in slow]
    assert len(rest) <= 1 and [first, *rest][-1].finished  # none if the first one was read late, too
    merged = first.with_delta(rest[0]) if rest else first
    assert merged.outputs == whole.outputs


async def test_a_stop_string_ends_a_stream(async_llm: AsyncLLM) -> None:
    text = (await last(async_llm, "hello", params(60, seed=3))).outputs[0].text
    stop = text[10:13]
    output = await last(async_llm, "hello", params(60, seed=3, stop=stop))
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", stop)
    assert output.outputs[0].text == text[: text.index(stop)]


async def test_an_id_in_use_is_refused_and_its_owner_goes_on(async_llm: AsyncLLM, gate: Gate) -> None:
    owner = asyncio.create_task(last(async_llm, "hello", params(4), "r"))
    await gate.arrival()
    with pytest.raises(InvalidRequestError, match="'r' is not finished yet"):
        await last(async_llm, "the cat", params(), "r")
    gate.open()
    assert (await owner).outputs[0].finish_reason == "length"


@pytest.mark.parametrize("n", [1, WIDE])
async def test_of_two_requests_with_one_id_the_first_has_it(async_llm: AsyncLLM, gate: Gate, n: int) -> None:
    owner = asyncio.create_task(last(async_llm, "hello", params(4, n=n), "r"))
    await one_turn()
    with pytest.raises(InvalidRequestError, match="'r' is not finished yet"):
        await last(async_llm, "the cat", params(), "r")
    gate.open()
    assert len((await owner).outputs) == n


async def test_a_late_farewell_does_not_end_the_next_owner_of_the_id(async_llm: AsyncLLM, gate: Gate) -> None:
    owner = asyncio.create_task(last(async_llm, "hello", params(4), "r"))
    await gate.arrival()
    earlier_owner = OutputStream(asyncio.get_running_loop(), DELTA)
    async_llm._commands.put(lambda: async_llm._drop("r", earlier_owner))
    gate.open()
    assert (await owner).outputs[0].finish_reason == "length"


async def test_a_wrong_request_is_its_clients_problem_alone(async_llm: AsyncLLM, gate: Gate) -> None:
    good = asyncio.create_task(last(async_llm, "hello", params(), "1_r"))
    await gate.arrival()
    for prompt, sampling_params in (("", params()), ("hello", params(logprobs=100)), ([400], params())):
        with pytest.raises(InvalidRequestError):
            await last(async_llm, prompt, sampling_params)
    clash = asyncio.create_task(last(async_llm, "hello", params(n=2), "r"))  # its second child is 1_r
    await one_turn()
    gate.open()
    with pytest.raises(ValueError, match="1_r"):  # only the core can know, in the engine's thread
        await clash
    assert (await good).finished
    await async_llm.check_health()


async def test_a_failing_engine_tells_every_client_and_turns_red(
    async_llm: AsyncLLM, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    clients = [asyncio.create_task(last(async_llm, "hello", params(50, n=1 + i % 2))) for i in range(6)]
    await gate.arrival()
    assert async_llm.is_running and not async_llm.errored
    gate.failure = ZeroDivisionError("a broken kernel")
    gate.let_pass()
    for result in await asyncio.gather(*clients, return_exceptions=True):
        assert isinstance(result, EngineDeadError) and "a broken kernel" in str(result)
        assert isinstance(result.__cause__, ZeroDivisionError)
    assert async_llm.errored and not async_llm.is_running
    with pytest.raises(EngineDeadError, match="a broken kernel"):
        await async_llm.check_health()
    for use in (last(async_llm, "hello", params()), async_llm.reset_prefix_cache()):
        with pytest.raises(EngineDeadError, match="a broken kernel"):
            await use
    await async_llm.abort("anything")


async def test_a_bug_in_the_frontend_is_a_failure_of_the_engine_too(
    async_llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_outputs: Any) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(async_llm.llm_engine.output_processor, "update", fail)
    with pytest.raises(EngineDeadError, match="KeyError: 'a bug'"):
        await last(async_llm, "hello", params())
    assert async_llm.errored


async def test_shutdown_tells_those_who_wait(async_llm: AsyncLLM, gate: Gate) -> None:
    reader = asyncio.create_task(last(async_llm, "hello", params(100)))
    await gate.arrival()
    stopping = asyncio.create_task(asyncio.to_thread(async_llm.shutdown))
    gate.open()
    with pytest.raises(EngineDeadError, match="shut down"):
        await reader
    await stopping
    async_llm.shutdown()
    with pytest.raises(EngineDeadError, match="shut down"):
        await last(async_llm, "hello", params())
    assert not async_llm._thread.is_alive()


@pytest.mark.parametrize("n", [1, WIDE])
async def test_shutdown_tells_a_client_that_has_just_begun(async_llm: AsyncLLM, gate: Gate, n: int) -> None:
    reader = asyncio.create_task(last(async_llm, "hello", params(100, n=n), "r"))
    await one_turn()
    assert list(async_llm._streams) == ["r"]
    stopping = asyncio.create_task(asyncio.to_thread(async_llm.shutdown))
    gate.open()
    with pytest.raises(EngineDeadError, match="shut down"):
        await reader
    await stopping


def test_one_engine_serves_one_event_loop_after_another(async_llm: AsyncLLM) -> None:
    first, second = (asyncio.run(last(async_llm, "hello", params(seed=1))) for _ in range(2))
    assert first.outputs == second.outputs


def test_a_client_whose_event_loop_is_gone_is_dropped(async_llm: AsyncLLM) -> None:
    loop = asyncio.new_event_loop()
    abandoned = async_llm.generate("hello", params(120, output_kind=DELTA))
    loop.run_until_complete(anext(abandoned))
    loop.close()
    asyncio.run(last(async_llm, "the cat", params(3)))
    assert not async_llm.errored


async def test_an_output_stream_holds_one_output_however_slow_its_reader(async_llm: AsyncLLM) -> None:
    stream = OutputStream(asyncio.get_running_loop(), DELTA)
    outputs = [o async for o in async_llm.generate("hello", params(5, output_kind=DELTA))]
    assert [stream.put(output) for output in outputs] == [True] + [False] * (len(outputs) - 1)
    stream.wake()
    merged = await stream.get()
    assert [t for o in outputs for t in o.outputs[0].token_ids] == merged.outputs[0].token_ids
    stream.put(outputs[0])
    stream.fail(ValueError("late"))
    assert (await stream.get()) is outputs[0]
    for _ in range(2):
        with pytest.raises(ValueError, match="late"):
            await stream.get()


async def test_the_prefix_cache_is_not_reset_under_a_running_request(async_llm: AsyncLLM, gate: Gate) -> None:
    reader = asyncio.create_task(last(async_llm, list(range(10, 30)), params(2)))
    await gate.arrival()
    reset = asyncio.create_task(async_llm.reset_prefix_cache())
    await one_turn()
    gate.let_pass()
    assert await reset is False
    gate.open()
    await reader
    assert await async_llm.reset_prefix_cache() is True

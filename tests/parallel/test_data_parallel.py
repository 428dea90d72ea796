"""Two engines behind one LLM: same tokens, prefixes stay together, one may die and the other goes on."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from engine import LLM, AsyncLLM, EngineArgs, SamplingParams
from engine.config import ConfigError
from engine.core.errors import EngineDeadError
from engine.exec.dp import DataParallelCore, replica_config
from engine.frontend.input_processor import InvalidRequestError
from engine.resolve import resolve

PROMPTS = [[3, 4, 5], [6, 7], list(range(8, 40)), [9, 9, 9, 9, 9], [11], [12, 13]]


@pytest.fixture(scope="module")
def pair(settings: dict[str, Any]) -> Iterator[LLM]:
    with LLM(**settings, data_parallel_size=2) as llm:
        yield llm


def core_of(llm: LLM | AsyncLLM) -> DataParallelCore:
    core = llm.llm_engine.engine_core
    assert isinstance(core, DataParallelCore)
    return core


def pids(core: DataParallelCore) -> list[int]:
    return [link.remote.pid for link in core._links]


def test_two_replicas_say_what_one_engine_says_and_share_the_work(
    pair: LLM, settings: dict[str, Any]
) -> None:
    params = [
        SamplingParams(max_tokens=10, temperature=t, seed=5, ignore_eos=True) for t in (0, 1, 1, 0.5, 1, 0)
    ]
    with LLM(**settings) as alone:
        expected = [output.outputs[0].token_ids for output in alone.generate(PROMPTS, params)]
    assert [output.outputs[0].token_ids for output in pair.generate(PROMPTS, params)] == expected
    core = core_of(pair)
    assert core.router.num_routed == [3, 3]
    assert core.router.loads == [0, 0]


def test_prompts_with_one_beginning_find_it_cached_in_the_replica_that_has_it(pair: LLM) -> None:
    shared = list(range(50, 90))
    hits = [
        pair.generate([[*shared, 100 + number]], SamplingParams(max_tokens=2))[0].num_cached_tokens
        for number in range(4)
    ]
    assert hits == [0, 40, 40, 40]
    assert pair.reset_prefix_cache()
    assert pair.generate([[*shared, 100]], SamplingParams(max_tokens=2))[0].num_cached_tokens == 0


def test_a_stream_can_be_left_and_the_rest_goes_on(pair: LLM) -> None:
    stream = pair.stream([3, 4, 5], SamplingParams(max_tokens=100, ignore_eos=True))
    next(stream)
    assert not pair.reset_prefix_cache(), "a request holds blocks"
    assert (
        len(pair.generate([[6, 7]], SamplingParams(max_tokens=5, ignore_eos=True))[0].outputs[0].token_ids)
        == 5
    )
    stream.close()
    assert pair.reset_prefix_cache()
    assert core_of(pair).router.loads == [0, 0]


def test_what_can_never_run_is_refused_before_it_is_sent(pair: LLM) -> None:
    with pytest.raises((InvalidRequestError, ValueError), match="whole KV cache"):
        pair.generate([[3] * 200], SamplingParams(max_tokens=56))
    assert core_of(pair).router.loads == [0, 0]


@pytest.mark.slow
def test_a_replica_that_dies_takes_its_requests_along_and_no_others(settings: dict[str, Any]) -> None:
    async def scenario(llm: AsyncLLM) -> tuple[list[str | None], list[str | None]]:
        first = asyncio.Event()

        async def read(prompt: list[int]) -> str | None:
            outputs = []
            async for output in llm.generate(prompt, SamplingParams(max_tokens=150, ignore_eos=True)):
                outputs.append(output)
                first.set()
            output = outputs[-1]
            return output.error or output.outputs[0].finish_reason

        tasks = [asyncio.create_task(read([prompt])) for prompt in (3, 4, 5, 6)]
        await first.wait()
        os.kill(pids(core_of(llm))[1], signal.SIGKILL)
        ends = [await task for task in tasks]
        return ends, [await read([7]), await read([8])]

    with AsyncLLM(EngineArgs(**settings, data_parallel_size=2)) as llm:
        ends, later = asyncio.run(scenario(llm))
        assert sorted(end == "length" for end in ends) == [False, False, True, True]
        lost = [end for end in ends if end != "length"]
        assert all("replica 1 is gone" in str(end) and "SIGKILL" in str(end) for end in lost)
        assert later == ["length", "length"]
        os.kill(pids(core_of(llm))[0], signal.SIGKILL)
        with pytest.raises(EngineDeadError, match="replica 0 is gone"):
            asyncio.run(read_one(llm))


async def read_one(llm: AsyncLLM) -> None:
    async for _ in llm.generate([3], SamplingParams(max_tokens=5)):
        pass


def test_each_replica_writes_a_trace_of_its_own() -> None:
    config = resolve(EngineArgs(model="shop-draft", trace="runs/a.itrace", data_parallel_size=2))
    assert [replica_config(config, index).trace for index in range(2)] == [
        "runs/a.replica0.itrace",
        "runs/a.replica1.itrace",
    ]


def test_what_goes_with_one_engine_only_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="data_parallel_size must be an integer of at least 1"):
        LLM(**settings, data_parallel_size=0)

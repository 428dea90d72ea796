"""The debug port of real engines: it changes no token, and holds LLM and AsyncLLM without hanging them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import LLM, SamplingParams
from engine.async_llm import AsyncLLM
from engine.config import ConfigError, EngineArgs
from engine.core.errors import EngineDeadError
from engine.core.scheduler import Scheduler
from engine.engine_core import EngineCore
from tests.engine.harness import request, tiny_settings
from tests.waiting import one_turn, until, wait_until

PROMPTS = [[5, 6, 7, 8, 9], [11, 12, 13]]
PARAMS = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)


@pytest.fixture
def settings(model_dir: Path) -> dict[str, Any]:
    return {**tiny_settings(model_dir), "debug_port": 0, "debug_checks": True}


@pytest.fixture
def llm(settings: dict[str, Any]) -> Iterator[LLM]:
    with LLM(**settings) as llm:
        yield llm


def call(engine: EngineCore, path: str, body: Any = None) -> Any:
    assert engine.debug is not None
    url = engine.debug.url.replace("/?", f"{path}?")
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data), timeout=20) as answer:
        content = answer.read()
    return [json.loads(line) for line in content.splitlines()] if "/trace" in path else json.loads(content)


def at_steps(engine: EngineCore, *actions: Callable[[], None]) -> threading.Thread:
    """Run actions in another thread, one after the other."""
    thread = threading.Thread(target=lambda: [action() for action in actions])
    thread.start()
    return thread


def until_paused(engine: EngineCore) -> None:
    wait_until(lambda: call(engine, "/debug/info")["paused"])


def test_generate_goes_on_where_it_was_stopped_and_says_the_same(
    llm: LLM, settings: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    core = llm.llm_engine.engine_core
    call(core, "/debug/breakpoints", {"breakpoints": [{"event": "admit"}]})
    thread = at_steps(
        core,
        lambda: until_paused(core),
        lambda: call(core, "/debug/inject", {"prompt_token_ids": [3, 4], "max_tokens": 3}),
        lambda: call(core, "/debug/breakpoints", {"breakpoints": []}),
        lambda: call(core, "/debug/resume", {}),
    )
    watched = llm.generate(PROMPTS, PARAMS)
    thread.join()
    records = call(core, "/debug/trace")
    assert [record["r"] for record in records if record["t"] == "add"] == ["0", "1", "injected-1"]
    with LLM(**{**settings, "debug_port": None}) as alone:
        assert alone.llm_engine.engine_core.debug is None
        free = alone.generate(PROMPTS, PARAMS)
    assert [o.outputs[0].token_ids for o in watched] == [o.outputs[0].token_ids for o in free]


def test_an_engine_that_waits_for_a_debugger_runs_no_step_before_it_continues(
    settings: dict[str, Any],
) -> None:
    with LLM(**settings, debug_wait=True) as llm:
        core = llm.llm_engine.engine_core
        before = []
        thread = at_steps(
            core,
            lambda: until_paused(core),
            lambda: before.append(call(core, "/debug/info")),
            lambda: call(core, "/debug/resume", {}),
        )
        outputs = llm.generate(PROMPTS, PARAMS)
        thread.join()
    assert "waits for a debugger" in before[0]["stopped_by"] and before[0]["step"] in (None, -1, 0)
    assert all(len(output.outputs[0].token_ids) == 12 for output in outputs)


def test_a_request_aborted_through_the_port_ends_for_its_client(llm: LLM) -> None:
    core = llm.llm_engine.engine_core
    call(core, "/debug/pause", {})
    thread = at_steps(
        core,
        lambda: call(core, "/debug/abort", {"request_id": "0"}),
        lambda: call(core, "/debug/resume", {}),
    )
    first, second = llm.generate(PROMPTS, PARAMS)
    thread.join()
    assert (first.outputs[0].finish_reason, second.outputs[0].finish_reason) == ("abort", "length")


def test_ctrl_c_ends_a_generate_that_a_debugger_holds(llm: LLM) -> None:
    core = llm.llm_engine.engine_core
    call(core, "/debug/pause", {})
    thread = at_steps(
        core,
        lambda: call(core, "/debug/inject", {"prompt_token_ids": [3]}),
        lambda: os.kill(os.getpid(), signal.SIGINT),
    )
    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPTS, PARAMS)
    thread.join()
    call(core, "/debug/resume", {})
    assert len(llm.generate(PROMPTS, PARAMS)) == 2


async def test_an_idle_async_engine_runs_what_is_injected_and_shuts_down_while_paused(
    settings: dict[str, Any],
) -> None:
    llm = AsyncLLM(EngineArgs.create(**settings))
    core = llm.llm_engine.engine_core
    assert isinstance(core, EngineCore)
    inject = {"prompt_token_ids": [3, 4], "max_tokens": 2, "ignore_eos": True}
    answer = await asyncio.to_thread(call, core, "/debug/inject", inject)
    assert answer["request_ids"] == ["injected-1"]
    await until(lambda: any(each["t"] == "step" and "fin" in each for each in call(core, "/debug/trace")))
    await asyncio.to_thread(call, core, "/debug/pause", {})
    client = asyncio.create_task(anext(aiter(llm.generate([5, 6], PARAMS))))
    await one_turn()
    assert call(core, "/debug/info")["paused"] and not client.done()
    await asyncio.to_thread(llm.shutdown)
    with pytest.raises(EngineDeadError):
        await client


class Raises(Scheduler):
    def schedule(self) -> Any:
        if self.stats.step >= 2:
            raise RuntimeError("this scheduler has a bug")
        return super().schedule()


def test_an_attached_reader_learns_of_what_an_engine_died(settings: dict[str, Any]) -> None:
    core = EngineCore.from_args(EngineArgs.create(**settings, scheduler_cls=Raises))
    core.add_request(request("a", PROMPTS[0]))
    while core.has_unfinished():
        core.step()
    assert "this scheduler has a bug" in call(core, "/debug/trace")[-1]["message"]
    assert "died" in call(core, "/debug/info")["end"]
    core.shutdown()
    with pytest.raises(OSError):
        call(core, "/debug/info")


def test_the_port_is_refused_where_it_cannot_be(settings: dict[str, Any], llm: LLM) -> None:
    core = llm.llm_engine.engine_core
    assert isinstance(core, EngineCore) and core.debug is not None
    taken = int(core.debug.url.split(":")[2].split("/")[0])
    with pytest.raises(ConfigError, match="debug_port=0 takes a free one"):
        LLM(**{**settings, "debug_port": taken})
    with pytest.raises(ConfigError, match="set only one of them"):
        LLM(**settings, data_parallel_size=2)
    with pytest.raises(ConfigError, match="set debug_port too"):
        LLM(**{**settings, "debug_port": None}, debug_wait=True)
    with pytest.raises(ConfigError, match="debug_port"):
        LLM(**{**settings, "debug_port": 70000})

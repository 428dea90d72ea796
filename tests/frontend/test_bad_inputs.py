"""Values of any type at every public entry point: each works or raises a clear ValueError, and the engine lives on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine import LLM, LoRARequest, SamplingParams
from engine.async_llm import AsyncLLM
from engine.config import ConfigError, EngineArgs
from engine.frontend.beam_search import BeamSearchParams
from engine.resolve import resolve
from engine.sampling_params import StructuredOutputsParams

ROOT = Path(__file__).parents[2]
QUICK: tuple[Any, ...] = (
    None, True, -1, 1.5, 10**30, float("nan"), "", "\ud800", b"x", [["a"]], {1: 2}, np.int64(3), torch.tensor(1),
)  # fmt: skip
ALL: tuple[Any, ...] = (
    *QUICK, False, 0, 1, 3, 10**12, 10**400, float("inf"), -0.0, "x", "a:b", "\x00", "9" * 5000, [], [1], (), {},
    {"a": 1}, {None: None}, {-1: 1}, {"5": 1}, {10**30: 1}, set(), object(), int, np.float32(0.5), np.array([1, 2]),
    Path("/nowhere"), repr, "stop", "auto", "none", "(", "root ::= root", "{{ 1/0 }}", "{% for", '{"a":',
    {"regex": "("}, {"json": {"type": []}}, {"prompt": "a"}, {"prompt": None}, {"prompt_token_ids": [1, None]},
    {"type": "object", "properties": 1}, {"function": None}, {"role": "user"}, [{"role": "user"}], [10**30], ["a", 1],
    [[1], "a"], [[], []], [None, None], [-1], [2**31], [2**63],
)  # fmt: skip
TIERS = pytest.mark.parametrize(
    "values", [QUICK, pytest.param(ALL, marks=pytest.mark.slow)], ids=["some", "all"]
)
USER = [{"role": "user", "content": "x"}]
TOOL = {"type": "function", "function": {"name": "f"}}


def params(**settings: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 2, **settings})


def is_clear(error: Exception) -> bool:
    """Whether one of our own lines raised it, as a ValueError with a message."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    assert trace is not None
    file = Path(trace.tb_frame.f_code.co_filename)
    is_ours = file.is_relative_to(ROOT / "engine") or file.is_relative_to(ROOT / "prep_common")
    return (
        is_ours and isinstance(error, ValueError) and not isinstance(error, UnicodeError) and bool(str(error))
    )


def raw_errors(calls: dict[str, Callable[[Any], Any]], values: Iterable[Any]) -> list[str]:
    """Call everything with every value; return what ended in an error that is not clear."""
    found = []
    for name, call in calls.items():
        for value in values:
            try:
                call(value)
            except Exception as error:
                if not is_clear(error):
                    found.append(f"{name}={ascii(value)[:60]}: {type(error).__name__}: {ascii(error)[:100]}")
    return found


def llm_calls(llm: LLM) -> dict[str, Callable[[Any], Any]]:
    """Return an entry point for each argument of the public methods."""

    def generate(prompt: Any, *args: Any, **options: Any) -> Any:
        return llm.generate(prompt, *(args or (params(),)), use_tqdm=False, **options)

    def chat(messages: Any = USER, sampling_params: Any = None, **options: Any) -> Any:
        given = params() if sampling_params is None else sampling_params
        return llm.chat(messages, given, use_tqdm=False, **options)

    calls: dict[str, Callable[[Any], Any]] = {
        "prompts": generate,
        "prompts[0]": lambda v: generate([v]),
        "token ids": lambda v: generate([[1, v]]),
        "prompt_token_ids": lambda v: generate({"prompt_token_ids": v}),
        "prompt": lambda v: generate({"prompt": v}),
        "cache_salt": lambda v: generate({"prompt": "a", "cache_salt": v}),
        "multi_modal_data": lambda v: generate({"prompt": "a", "multi_modal_data": v}),
        "image": lambda v: generate({"prompt": "a <image>", "multi_modal_data": {"image": v}}),
        "sampling_params": lambda v: generate("a", v),
        "sampling_params[0]": lambda v: generate(["a"], [v]),
        "lora_request": lambda v: generate("a", lora_request=v),
        "lora_request[0]": lambda v: generate(["a"], lora_request=[v]),
        "priority": lambda v: generate(["a"], priority=v),
        "priority[0]": lambda v: generate(["a"], priority=[v]),
        "stream": lambda v: list(llm.stream(v, params())),
        "stream params": lambda v: list(llm.stream([1], params() if v is None else v)),
        "stream lora": lambda v: list(llm.stream([1], params(), lora_request=v)),
        "embed": lambda v: llm.embed(v, use_tqdm=False),
        "embed[0]": lambda v: llm.embed([v], use_tqdm=False),
        "messages": chat,
        "messages[0]": lambda v: chat([v]),
        "role": lambda v: chat([{"role": v, "content": "x"}]),
        "content": lambda v: chat([{"role": "user", "content": v}]),
        "chat params": lambda v: chat(USER, v),
        "chat_template": lambda v: chat(chat_template=v),
        "add_generation_prompt": lambda v: chat(add_generation_prompt=v),
        "continue_final_message": lambda v: chat(continue_final_message=v),
        "tools": lambda v: chat(tools=v),
        "tools[0]": lambda v: chat(tools=[v]),
        "tool name": lambda v: chat(tools=[{"type": "function", "function": {"name": v}}]),
        "tool parameters": lambda v: chat(
            tools=[{"type": "function", "function": {"name": "f", "parameters": v}}], tool_choice="required"
        ),
        "tool_choice": lambda v: chat(tools=[TOOL], tool_choice=v),
        "chat_template_kwargs": lambda v: chat(chat_template_kwargs=v),
        "beam prompts": lambda v: llm.beam_search(v, BeamSearchParams(2, 2)),
        "beam params": lambda v: llm.beam_search("a", v),
        "beam_width": lambda v: llm.beam_search("a", BeamSearchParams(v, 2)),
        "beam max_tokens": lambda v: llm.beam_search("a", BeamSearchParams(2, v)),
        "length_penalty": lambda v: llm.beam_search("a", BeamSearchParams(2, 2, length_penalty=v)),
        "beam ignore_eos": lambda v: llm.beam_search("a", BeamSearchParams(2, 2, ignore_eos=v)),
        "lora_name": lambda v: LoRARequest(v, 1, "x"),
        "lora_int_id": lambda v: LoRARequest("a", v, "x"),
        "lora_path": lambda v: generate("a", lora_request=LoRARequest("a", 1, v)),
        "lora load_inplace": lambda v: generate("a", lora_request=LoRARequest("a", 1, "/x", v)),
        "load name": lambda v: llm.load_lora_adapter(v, "/x"),
        "load path": lambda v: llm.load_lora_adapter("q", v),
        "load_inplace": lambda v: llm.load_lora_adapter("q", "/x", load_inplace=v),
        "unload": llm.unload_lora_adapter,
    }
    for field in fields(SamplingParams):
        if field.init:
            calls[field.name] = lambda v, name=field.name: generate("a", params(**{name: v}))
    for field in fields(StructuredOutputsParams):
        calls[f"structured {field.name}"] = lambda v, name=field.name: generate(
            "a", params(structured_outputs={name: v})
        )
    return calls


@TIERS
def test_no_value_of_a_request_ends_in_a_raw_error_or_hurts_the_engine(
    make_llm: Callable[..., LLM], values: tuple[Any, ...]
) -> None:
    llm = make_llm(enable_lora=True, debug_checks=False)
    assert raw_errors(llm_calls(llm), values) == []
    assert not llm.llm_engine.has_unfinished()
    [output] = llm.generate("hello", params(), use_tqdm=False)
    assert output.finished and len(output.outputs[0].token_ids) > 0


@TIERS
def test_no_value_of_an_engine_argument_ends_in_a_raw_error(
    settings: dict[str, Any], values: tuple[Any, ...]
) -> None:
    """Up to the resolved configuration: from there on only a worker's memory can refuse."""
    calls = {
        field.name: lambda value, name=field.name: resolve(EngineArgs.create(**{**settings, name: value}))
        for field in fields(EngineArgs)
    }
    assert raw_errors(calls, values) == []


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("enable_lora", "false", "enable_lora must be true or false, got 'false'"),
        ("model", 5, "model must be text, got 5"),
        ("dtype", ["a"], r"dtype must be text, got \['a'\]"),
        ("tensor_parallel_size", None, "tensor_parallel_size must be an integer, got None"),
        ("tensor_parallel_size", 10**12, "must be an integer of at most 2147483647"),
        ("tensor_parallel_size", 2**31 - 1, "does not divide the 4 attention heads"),
        ("hf_overrides", {1: 2}, "hf_overrides must be a dict with names as keys"),
        ("watermark", float("nan"), "watermark must be a finite number"),
        ("model", "x" * 5000, "cannot be looked up: .*too long"),
        ("scheduler_cls", int, "has no add, abort, schedule, update"),
        ("distributed_executor_backend", int, "has no submit, collective_rpc, shutdown"),
        (
            "speculative_config",
            {"method": "ngram", "adaptive": 1},
            "speculative_config: adaptive must be true or",
        ),
    ],
)
def test_a_wrong_type_is_named_with_what_it_must_be(
    settings: dict[str, Any], name: str, value: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(EngineArgs.create(**{**settings, name: value}))


@pytest.mark.parametrize("penalty", [1e3, -1e3, float("nan"), float("inf"), 10**400, True, "x"])
def test_a_length_penalty_beyond_the_range_of_a_float_is_refused(penalty: Any) -> None:
    with pytest.raises(ValueError, match="length_penalty must be a number from -40 to 40"):
        BeamSearchParams(2, 2, length_penalty=penalty)


@pytest.mark.parametrize("penalty", [-40, 40])
def test_the_largest_length_penalty_ranks_beams_of_any_length(
    make_llm: Callable[..., LLM], penalty: int
) -> None:
    [output] = make_llm().beam_search("hello", BeamSearchParams(2, 60, length_penalty=penalty))
    assert len(output.sequences) == 2


@TIERS
def test_no_value_given_to_an_async_engine_hurts_other_clients(
    settings: dict[str, Any], values: tuple[Any, ...]
) -> None:
    """`abort([["a"]])` once ended the engine for all clients."""

    async def run(llm: AsyncLLM) -> list[str]:
        async def generate(*args: Any, **options: Any) -> Any:
            return [output async for output in llm.generate(*args, **options)]

        calls: dict[str, Callable[[Any], Awaitable[Any]]] = {
            "prompt": lambda v: generate(v, params()),
            "sampling_params": lambda v: generate([1], params() if v is None else v),
            "request_id": lambda v: generate([1], params(), v),
            "lora_request": lambda v: generate([1], params(), lora_request=v),
            "priority": lambda v: generate([1], params(), priority=v),
            "trace_headers": lambda v: generate([1], params(), trace_headers=v),
            "abort": llm.abort,
            "abort[0]": lambda v: llm.abort([v]),
            "sleep": llm.sleep,
            "sleep mode": lambda v: llm.sleep(1, v),
            "add_lora": llm.add_lora,
            "load name": lambda v: llm.load_lora_adapter(v, "/x"),
            "load path": lambda v: llm.load_lora_adapter("x", v),
            "unload": llm.unload_lora_adapter,
        }
        found = []
        other = asyncio.create_task(generate([1, 2], params(max_tokens=100, ignore_eos=True)))
        for name, call in calls.items():
            for value in values:
                try:
                    await call(value)
                except Exception as error:
                    if not is_clear(error):
                        found.append(
                            f"{name}={ascii(value)[:60]}: {type(error).__name__}: {ascii(error)[:100]}"
                        )
        assert (await other)[-1].outputs[0].finish_reason == "length"  # it was not aborted
        assert (await generate([1], params()))[-1].finished and not llm.errored
        return found

    with AsyncLLM(EngineArgs.create(**{**settings, "enable_lora": True, "debug_checks": False})) as llm:
        assert asyncio.run(run(llm)) == []

"""Common parts of completions and chat completions: the engine behind its limits, usage, chunks of a stream."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar
from uuid import uuid4

from engine.async_llm import AsyncLLM
from engine.config import EngineConfig
from engine.frontend.input_processor import InputProcessor
from engine.frontend.tokenizer import Tokenizer
from engine.frontend.turns import let_others_run
from engine.outputs import RequestOutput
from engine.server.admission import Admission
from engine.server.errors import ApiError, api_error, is_of_the_request
from engine.server.middleware import sound_id
from engine.server.models import Models
from engine.server.protocol import GenerationRequest, StreamOptions
from prep_common.text import counted

logger = logging.getLogger(__name__)

Output = TypeVar("Output")

LARGE_BODY = 16 << 10
"""Bytes that take about 20 ms to tokenise."""
MAX_COMPLETION_PROMPTS = 1024
"""Prompts of one request (vLLM: VLLM_MAX_COMPLETION_PROMPTS)."""
MAX_COMPLETIONS = 16384
"""Prompts times n of one request; vLLM limits n alone (VLLM_MAX_N_SEQUENCES)."""


@dataclass(frozen=True)
class Service:
    """The engine with everything that a handler needs."""

    llm: AsyncLLM
    models: Models
    admission: Admission
    timeout_s: float | None = None
    """Time for one request; None: any."""
    shows_cached_tokens: bool = False
    """Report the prompt tokens that the prefix cache had (vLLM: --enable-prompt-tokens-details)."""
    tool_call_parser: str = "hermes"
    version: str = "0"
    max_completion_prompts: int = MAX_COMPLETION_PROMPTS
    large_bodies: Executor = field(default_factory=lambda: ThreadPoolExecutor(1, "prep-large-bodies"))

    @property
    def config(self) -> EngineConfig:
        return self.llm.llm_engine.engine_core.config

    @property
    def max_model_len(self) -> int:
        return self.config.scheduler.max_model_len

    @property
    def processor(self) -> InputProcessor:
        return self.llm.llm_engine.input_processor

    @property
    def tokenizer(self) -> Tokenizer:
        tokenizer = self.llm.get_tokenizer()
        assert tokenizer is not None  # `prep serve` refuses --skip-tokenizer-init
        return tokenizer

    def priority(self, request: GenerationRequest) -> int:
        """Return the priority for the engine: 0 if it serves in order of arrival, as vLLM ignores it then."""
        return request.priority if self.config.scheduler.policy == "priority" else 0

    def answer(
        self, kind: str, model: str, prefix: str, request: GenerationRequest, headers: Mapping[str, str]
    ) -> Answer:
        answer_id = new_id(prefix, sound_id(headers) or request.request_id)
        return Answer(kind, model, answer_id, f"prep-{self.version}", trace_headers=trace_headers(headers))

    def check_completions(self, num_prompts: int, n: int) -> None:
        """Refuse a request for too many completions. Raises ApiError."""
        if num_prompts > self.max_completion_prompts:
            message = (
                f"prompt has {num_prompts:,} prompts, and one request may have {self.max_completion_prompts:,} "
                "(--max-completion-prompts); send several requests"
            )
            raise ApiError(400, message, param="prompt")
        if num_prompts * n > MAX_COMPLETIONS:
            message = (
                f"n: {counted(num_prompts, 'prompt')} with n={n:,} are {num_prompts * n:,} completions, and one "
                f"request may have {MAX_COMPLETIONS:,}; send several requests"
            )
            raise ApiError(400, message, param="n")

    async def prepare(self, num_bytes: int, work: Callable[[], Output]) -> Output:
        """Return the result of a function that checks, renders and tokenises a body of this size.

        Large bodies have a thread, one after the other, so that other clients are served meanwhile.
        """
        if num_bytes <= LARGE_BODY:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self.large_bodies, work)

    async def run(
        self, num_completions: int, outputs: AsyncGenerator[Output, None]
    ) -> AsyncGenerator[Output, None]:
        """Yield outputs from a place in the server for so many completions. Raises TimeoutError after `timeout_s`.

        The deadline is checked at each output: one asyncio.timeout around all of them would belong to the task that
        asked for the first, and a stream's later ones are asked for by another.
        """
        async with self.admission.enter(num_completions), aclosing(outputs):
            deadline = None if self.timeout_s is None else asyncio.get_running_loop().time() + self.timeout_s
            while True:
                async with asyncio.timeout_at(deadline):
                    try:
                        output = await anext(outputs)
                    except StopAsyncIteration:
                        return
                yield output


@dataclass
class Answer:
    """Head of all chunks of an answer, and its usage so far."""

    kind: str
    model: str
    id: str
    fingerprint: str
    """Names the server: answers with equal seeds and fingerprints should be equal."""
    created: int = field(default_factory=lambda: int(time.time()))
    num_prompt_tokens: dict[int, int] = field(default_factory=dict)
    """Per prompt."""
    num_output_tokens: dict[int, int] = field(default_factory=dict)
    """Per choice."""
    num_cached_tokens: int | None = None
    trace_headers: dict[str, str] | None = None
    """The caller's span."""

    def body(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        head = {"id": self.id, "object": self.kind, "created": self.created, "model": self.model}
        return {**head, "choices": choices, **more}

    def whole(
        self, choices: list[dict[str, Any]], *, shows_cached_tokens: bool, **more: Any
    ) -> dict[str, Any]:
        """Return an answer that is no stream, with every field that vLLM has."""
        usage = {"prompt_tokens_details": None, "completion_tokens_details": None}
        usage |= self.usage(shows_cached_tokens=shows_cached_tokens)
        head = {"service_tier": None, "system_fingerprint": self.fingerprint, "usage": usage}
        return self.body(choices, **head, **more, **NOT_HERE)

    def ending(self, is_last: bool) -> dict[str, Any]:
        """Return what the last chunks of a stream have in addition."""
        return {"system_fingerprint": self.fingerprint} if is_last else {}

    def count_prompt(self, output: RequestOutput, prompt: int = 0) -> None:
        """Note the length of the prompt with this number."""
        self.num_prompt_tokens[prompt] = len(output.prompt_token_ids)
        self.num_cached_tokens = output.num_cached_tokens

    def count(self, output: RequestOutput, prompt: int = 0, n: int = 1) -> None:
        """Add the tokens of an output of the prompt with this number, which has n choices."""
        self.count_prompt(output, prompt)
        for completion in output.outputs:
            index = prompt * n + completion.index
            self.num_output_tokens[index] = self.num_output_tokens.get(index, 0) + len(completion.token_ids)

    def usage(self, *, shows_cached_tokens: bool = False) -> dict[str, Any]:
        """Return the usage of the whole answer so far."""
        usage = _usage(sum(self.num_prompt_tokens.values()), sum(self.num_output_tokens.values()))
        if shows_cached_tokens:
            usage["prompt_tokens_details"] = {"cached_tokens": self.num_cached_tokens}
        return usage

    def usage_of(self, choice: int, prompt: int = 0) -> dict[str, Any]:
        """Return the usage of one choice so far, which the chunks of a stream have."""
        return _usage(self.num_prompt_tokens[prompt], self.num_output_tokens.get(choice, 0))


def _usage(prompt: int, output: int) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}


NOT_HERE = {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}
"""Fields of vLLM's answers for what this server does not do."""


@dataclass(frozen=True)
class UsageChunks:
    """When a stream reports its usage."""

    at_end: bool
    always: bool

    @classmethod
    def of(cls, options: StreamOptions | None) -> UsageChunks:
        at_end = bool(options and options.include_usage)
        return cls(at_end, at_end and bool(options and options.continuous_usage_stats))


def trace_headers(headers: Mapping[str, str]) -> dict[str, str] | None:
    """Return the headers that name the caller's span, if there are any (W3C Trace Context)."""
    return {name: headers[name] for name in ("traceparent", "tracestate") if name in headers} or None


def new_id(prefix: str, wanted: str | None) -> str:
    """Return the id of an answer: the client's, or a new one."""
    return f"{prefix}-{wanted or uuid4().hex}"


def engine_id(answer_id: str, number: int = 0) -> str:
    """Return the engine's id of a request: unique, whatever ids clients send."""
    return f"{answer_id}-{number}-{uuid4().hex[:8]}"


def raise_if_failed(output: RequestOutput) -> None:
    """Raise the error with which a request ended in the engine."""
    if output.error is not None:
        raise ApiError(400 if is_of_the_request(output.error) else 500, output.error)


def event(body: dict[str, Any]) -> bytes:
    """Return a server-sent event."""
    return b"data: " + _json(body).encode(errors="replace") + b"\n\n"


async def encoded(answer: dict[str, Any]) -> bytes:
    """Return a whole answer as JSON, choice by choice."""
    choices = []
    for number, choice in enumerate(answer["choices"]):
        choices.append(_json(choice))
        await let_others_run(number)
    values = {name: _json(value) for name, value in answer.items() if name != "choices"}
    values["choices"] = f"[{','.join(choices)}]"
    return ("{" + ",".join(f"{_json(name)}:{values[name]}" for name in answer) + "}").encode(errors="replace")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


DONE = b"data: [DONE]\n\n"


async def events(first: dict[str, Any], others: AsyncGenerator[dict[str, Any], None]) -> AsyncIterator[bytes]:
    """Turn chunks into events. An error after the first chunk is an event too: the status is sent already."""
    try:
        yield event(first)
        async with aclosing(others) as chunks:
            async for chunk in chunks:
                yield event(chunk)
    except Exception as error:
        known = api_error(error)
        if known.status >= 500:
            logger.error("a stream failed: %s", error, exc_info=not isinstance(error, ApiError))
        yield event(known.body())
    yield DONE


async def merged(
    outputs: Sequence[AsyncGenerator[RequestOutput, None]],
    submitting: AbstractAsyncContextManager[Any] | None = None,
) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """Yield the outputs of several requests as they come, each with the number of its request.

    A reader that is slow has at most one output of each waiting here; the engine merges the others. submitting: held
    until all requests have begun.
    """
    if len(outputs) == 1:
        async with aclosing(outputs[0]) as only:
            async for output in only:
                yield 0, output
        return
    ready: asyncio.Queue[tuple[int, RequestOutput] | Exception | None] = asyncio.Queue(len(outputs))

    async def read(number: int) -> None:
        try:
            async with aclosing(outputs[number]) as stream:
                async for output in stream:
                    await ready.put((number, output))
            await ready.put(None)
        except Exception as error:
            await ready.put(error)

    tasks: list[asyncio.Task[None]] = []
    try:
        async with submitting or nullcontext():
            for number in range(len(outputs)):
                tasks.append(asyncio.create_task(read(number)))
                await let_others_run(number)
            await asyncio.sleep(0)  # the last ones begin
        num_open, num_read = len(outputs), count()
        while num_open:
            await let_others_run(next(num_read))  # a queue that holds something does not
            match await ready.get():
                case None:
                    num_open -= 1
                case Exception() as error:
                    raise error
                case found:
                    yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

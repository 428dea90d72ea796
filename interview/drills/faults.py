"""Faults that are no setting: hooks that patch the server's process or the engine's.

A hook is a function with keyword arguments; `@hook(...)` names the processes in which it runs. It is called before the
server is built.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from importlib import import_module
from itertools import count
from typing import Any, Literal

from engine.core import scheduler
from engine.core.kv_manager import KVManager
from engine.core.request import Request, RequestStatus
from engine.engine_core import EngineCore
from engine.exec import core_process
from engine.frontend.input_processor import InputProcessor
from engine.frontend.tokenizer import Tokenizer
from engine.server import service
from interview.drills.commands import HOOKS_VARIABLE

Process = Literal["server", "core"]
HOOKS: dict[str, tuple[tuple[Process, ...], Callable[..., None]]] = {}


def hook(*processes: Process) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a hook under the name of its function."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        HOOKS[function.__name__] = (processes, function)
        return function

    return register


def hooks() -> dict[str, tuple[tuple[Process, ...], Callable[..., None]]]:
    """Return all hooks, those of platform_faults.py included: name -> processes and function."""
    import_module("interview.drills.platform_faults")
    return HOOKS


def apply(process: Process) -> None:
    """Call the hooks of the environment that belong to this process."""
    for wanted in json.loads(os.environ.get(HOOKS_VARIABLE) or "[]"):
        processes, function = hooks()[wanted["name"]]
        if process in processes:
            function(**wanted["args"])


@hook("core")
def pace(step_ms: float, token_ms: float, row_ms: float) -> None:
    """Let each step take so long at least, plus a time per prompt token and per answer, as on a larger model.

    It is no fault: all servers of a drill have it. A step of the model `shop` takes less than a millisecond, and the
    queues of a few requests per second would be empty.
    """
    step = EngineCore.step

    def paced(self: EngineCore) -> Any:
        start = time.monotonic()
        outputs = step(self)
        stats = self.scheduler.stats
        if self.scheduler.requests or stats.num_scheduled_tokens:
            ms = step_ms + token_ms * stats.num_prefill_tokens + row_ms * stats.num_decode_tokens
            time.sleep(max(0.0, start + ms / 1000 - time.monotonic()))
        return outputs

    EngineCore.step = paced  # type: ignore[method-assign]


@hook("core")
def abort_leaks_blocks() -> None:
    """Keep the blocks of a request that is aborted while it runs."""
    forget = KVManager.forget

    def leaking(self: KVManager, request: Request) -> None:
        if request.status is not RequestStatus.FINISHED_ABORTED:
            forget(self, request)

    KVManager.forget = leaking  # type: ignore[method-assign]


@hook("server", "core")
def admission_is_unchecked() -> None:
    """Queue requests that are larger than the whole KV cache."""
    for module in (scheduler, core_process):
        module.check_can_run = lambda *_: None  # type: ignore[attr-defined]


@hook("core")
def export_in_the_step(ms: float) -> None:
    """Wait in every step, as for a log or a metrics exporter that answers slowly."""
    step = EngineCore.step

    def slow(self: EngineCore) -> Any:
        time.sleep(ms / 1000)
        return step(self)

    EngineCore.step = slow  # type: ignore[method-assign]


@hook("core")
def compile_on_first_use(ms: float, warm: bool) -> None:
    """Pay for a compilation at the first step of each size of batch, or for all sizes at the start."""
    step, seen = EngineCore.step, set[int]()
    if warm:
        seen.update(range(12))
        time.sleep(12 * ms / 1000)

    def compiling(self: EngineCore) -> Any:
        outputs = step(self)
        size = self.scheduler.stats.num_scheduled_tokens.bit_length()
        if size not in seen and self.scheduler.requests:
            seen.add(size)
            time.sleep(ms / 1000)
        return outputs

    EngineCore.step = compiling  # type: ignore[method-assign]


@hook("server")
def slow_events(ms: float) -> None:
    """Block the event loop at each chunk of an answer, as slow detokenising in a handler does."""
    event = service.event

    def slow(body: dict[str, Any]) -> bytes:
        time.sleep(ms / 1000)
        return event(body)

    service.event = slow  # type: ignore[assignment]


@hook("server")
def slow_tokenizer(us_per_character: float) -> None:
    """Block the event loop while a prompt is tokenised, as a tokenizer without its fast implementation does."""
    encode = Tokenizer.encode

    def slow(self: Tokenizer, text: str, *args: Any, **options: Any) -> Any:
        time.sleep(us_per_character * len(text) / 1e6)
        return encode(self, text, *args, **options)

    Tokenizer.encode = slow  # type: ignore[method-assign]


@hook("server")
def stamp_prompts(tokens: int, place: Literal["head", "tail"], fixed: int = 0, least: int = 200) -> None:
    """Add tokens to each prompt, as a chat template with a time does: `fixed` equal ones, then `tokens` new ones.

    least: shorter prompts are not from this template and stay as they are.
    """
    process, numbers = InputProcessor.process, count(1)

    def stamped(self: InputProcessor, request_id: str, prompt: Any, *args: Any, **options: Any) -> Any:
        _, token_ids, _ = self._parse(prompt)
        if len(token_ids) < least:
            return process(self, request_id, prompt, *args, **options)
        number = next(numbers)
        stamp = [150] * fixed + [100 + (number * 31 + 7 * position) % 800 for position in range(tokens)]
        joined = stamp + token_ids if place == "head" else token_ids + stamp
        return process(self, request_id, joined, *args, **options)

    InputProcessor.process = stamped  # type: ignore[method-assign]


@hook("server")
def wrong_end_of_sequence(token: int) -> None:
    """End answers at another token than the one which the model was trained to end with."""
    build = InputProcessor.__init__

    def built(self: InputProcessor, *args: Any, **options: Any) -> None:
        build(self, *args, **options)
        self.eos_token_ids = frozenset([token])

    InputProcessor.__init__ = built  # type: ignore[method-assign]

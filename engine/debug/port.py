"""The debug port of a running engine: its trace as it grows, and commands that control it.

    engine thread                                 HTTP threads
    EngineCore.step:   before_step  <- commands --  inject, abort
                                    <- leave -----  pause, resume, step
                       TraceWriter  -- records ->   feed ---> /debug/trace
                                    -- record --->  breakpoints

Everything that touches the engine runs on the engine's thread, between two steps.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TYPE_CHECKING, Any, Protocol

from engine.core.errors import EngineDeadError
from engine.core.observer import StepObserver
from engine.core.request import Request
from engine.debug.breakpoints import Breakpoint, DebugError
from engine.debug.control import Control
from engine.debug.feed import TraceFeed
from engine.debug.server import Action, DebugServer
from engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from engine.core.sched_output import EngineCoreOutput
    from engine.core.scheduler import Scheduler

COMMAND_S = 5.0
"""Longest wait of a caller for the engine's thread."""
LAST_LINES_S = 0.3
"""Longest wait of a closing engine for an attached reader to fetch the last lines."""


class Engine(Protocol):
    """The part of `EngineCore` that the port needs."""

    scheduler: Scheduler

    def add_request(self, request: Request) -> None: ...
    def abort(self, request_ids: list[str]) -> list[EngineCoreOutput]: ...


class DebugPort(StepObserver):
    """Open from its creation. `tracer` gets `take` and `end` as the tap of its records."""

    def __init__(self, port: int, about: dict[str, Any]) -> None:
        """about: entries of `/debug/info` besides the engine's state. Raises DebugError if the port is taken."""
        self.feed = TraceFeed()
        self.control = Control()
        self.engine: Engine | None = None
        """Set once the engine is complete."""
        self.read_requests: Callable[[str, dict[str, Any]], list[Request]] = _token_request
        """Turn an `inject` command into requests; a frontend replaces it to support text and adapters."""
        actions: dict[str, Action] = {
            "pause": lambda wish: self.control.pause(),
            "resume": lambda wish: self.control.resume(wish.get("steps_per_s")),
            "step": lambda wish: self.control.step(wish.get("n", 1)),
            "breakpoints": self._set_breakpoints,
            "inject": self._inject,
            "abort": self._abort,
        }
        self._about = about
        self._names: dict[int, str] = {}
        """Live requests by number."""
        self.num_steps = 0
        """Complete steps."""
        self._num_injected = 0
        self._aborted: list[EngineCoreOutput] = []
        try:
            self._server = DebugServer(port, secrets.token_urlsafe(16), self.feed, self.info, actions)
        except OSError as error:
            problem = f"the debug port cannot listen on 127.0.0.1:{port}: {error.strerror or error}"
            raise DebugError(f"{problem}. debug_port=0 takes a free one") from error

    @property
    def url(self) -> str:
        return self._server.url

    # ------------------------------------------------------------------ the engine's thread

    def before_step(self) -> list[EngineCoreOutput] | None:
        """Run commands; hold the engine while it is paused, or to return the last outputs of requests aborted here."""
        self.control.run_commands()
        outputs, self._aborted = self._aborted, []
        return None if not outputs and self.control.may_step() else outputs

    def after_step(self) -> None:
        self.control.left_step()

    def take(self, record: dict[str, Any], line: bytes) -> None:
        """Take a record of the trace, as an object and as a line."""
        self.feed.append(line)
        kind = record["t"]
        if kind == "step":
            self.num_steps = record["i"] + 1
            self.control.stepped(record, self._names)
            for number, _ in record.get("fin", ()):
                self._names.pop(number, None)
        elif kind == "add":
            self._names[record["q"]] = record["r"]
        elif kind == "abort":
            self._names.pop(record["q"], None)

    def end(self, why: str) -> None:
        """End the feed: the trace is over, though the engine may go on."""
        self.feed.close(why)

    def close(self) -> None:
        """Close the port after an attached reader has fetched the last lines."""
        self.feed.close("the engine was shut down")
        self.control.close()
        self.feed.wait_until_read(LAST_LINES_S)
        self._server.close()

    # ------------------------------------------------------------------ HTTP threads

    def info(self) -> dict[str, Any]:
        about = {
            **self._about,
            "pid": os.getpid(),
            "takes_text": self.read_requests is not _token_request,
            "step": self.num_steps - 1,
        }
        if self.engine is not None:
            scheduler = self.engine.scheduler
            about |= {
                "num_running": len(scheduler.running),
                "num_waiting": len(scheduler.requests) - len(scheduler.running),
                "num_free_blocks": len(scheduler.kv.pool.free),
                "num_blocks": len(scheduler.kv.pool.blocks),
                "has_work": scheduler.has_unfinished(),
            }
        return {**about, **self.control.describe(), "num_lines": self.feed.num_lines, "end": self.feed.end}

    def _set_breakpoints(self, wish: dict[str, Any]) -> None:
        wishes = wish.get("breakpoints")
        if not isinstance(wishes, list):
            example = '[{"event": "preempt"}]'
            raise DebugError(
                f"breakpoints is a list, empty to remove all; for example {example}, got {wishes!r}"
            )
        self.control.set_breakpoints([Breakpoint.parse(entry) for entry in wishes])

    def _inject(self, wish: dict[str, Any]) -> dict[str, Any]:
        return {"request_ids": self._on_engine_thread(lambda: self._add(wish))}

    def _abort(self, wish: dict[str, Any]) -> dict[str, Any]:
        request_id = wish.get("request_id")
        if not isinstance(request_id, str):
            raise DebugError(f"request_id names the request to abort, got {request_id!r}")
        if not self._on_engine_thread(lambda: self._drop(request_id)):
            what = f"no unfinished request {request_id!r}: it has finished or never arrived"
            raise DebugError(f"{what}. /debug/trace lists arrivals")
        return {"aborted": request_id}

    def _on_engine_thread(self, function: Callable[[], Any]) -> Any:
        try:
            return self.control.submit(function).result(COMMAND_S)
        except FutureTimeout:
            problem = f"the engine has not started a step for {COMMAND_S:g} s: it is idle or in a long step"
            raise DebugError(f"{problem}. Your command runs before its next step") from None
        except CancelledError:
            raise DebugError("the engine has ended: it takes no more requests or aborts") from None
        except (ValueError, EngineDeadError) as error:
            raise DebugError(str(error)) from None

    def _add(self, wish: dict[str, Any]) -> list[str]:
        assert self.engine is not None
        request_id = wish.get("request_id")
        if request_id is not None and not isinstance(request_id, str):
            raise DebugError(f"request_id is the request's name, a string, got {request_id!r}")
        self._num_injected += 1
        requests = self.read_requests(request_id or f"injected-{self._num_injected}", wish)
        added: list[str] = []
        try:
            for request in requests:
                self.engine.add_request(request)
                added.append(request.request_id)
        except ValueError:
            self.engine.abort(added)
            raise
        return added

    def _drop(self, request_id: str) -> bool:
        assert self.engine is not None
        outputs = self.engine.abort([request_id])
        self._aborted += outputs
        return bool(outputs)


def _token_request(request_id: str, wish: dict[str, Any]) -> list[Request]:
    """Read a request of token ids, the only kind that an engine without a frontend understands."""
    prompt = wish.get("prompt_token_ids")
    if not isinstance(prompt, list) or not all(type(token) is int and token >= 0 for token in prompt):
        remedy = "give the prompt as prompt_token_ids, a list of integers from 0 on"
        raise DebugError(f"this engine has no tokenizer: {remedy}")
    priority = wish.get("priority", 0)
    if type(priority) is not int:
        raise DebugError(f"priority is an integer (lower runs first), got {priority!r}")
    params = SamplingParams(max_tokens=wish.get("max_tokens", 16), temperature=0, ignore_eos=True)
    return [Request(request_id, prompt, params, time.monotonic(), priority)]

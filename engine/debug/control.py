"""Pace the engine: pause, resume, run single steps, a number of steps per second, or up to a breakpoint.

The engine's thread calls `may_step` before each step. After at most `WAIT_S` seconds it returns, allowed or not. If
not, the engine's `step` returns with nothing done, so that the calling loop can take new requests, aborts, Ctrl-C and
shutdown before it asks again: a paused engine still answers.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from engine.debug.breakpoints import Breakpoint, DebugError

WAIT_S = 0.05
LONGEST_STEP_S = 5.0
"""Longest wait of `pause` for the step under way."""


class Control:
    """Thread-safe settings. The engine's thread calls `may_step`, `stepped` and `run_commands`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._paused = False
        self._steps_left: int | None = None
        self._steps_per_s: float | None = None
        self._next_at = 0.0
        """Earliest start of the next step, by the monotonic clock."""
        self._in_step = False
        self._breakpoints: list[Breakpoint] = []
        self._stopped_by: str | None = None
        self._commands: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self.on_command: Callable[[], None] = lambda: None
        """Wake the loop that steps the engine if it waits for requests elsewhere."""

    # -- from any thread

    def pause(self, why: str = "a user asked for it") -> None:
        """Start no further step. Return when the step under way, if any, is over."""
        with self._changed:
            self._stop(why)
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._in_step, LONGEST_STEP_S)

    def resume(self, steps_per_s: float | None = None) -> None:
        """Resume at full speed, or at a number of steps per second."""
        if steps_per_s is not None and (type(steps_per_s) not in (int, float) or not 0 < steps_per_s <= 1e6):
            raise DebugError(f"steps_per_s is a number of steps per second above 0, got {steps_per_s!r}")
        self._go(None, steps_per_s)

    def step(self, num_steps: int = 1) -> None:
        """Run this many steps, then pause."""
        if type(num_steps) is not int or num_steps < 1:
            raise DebugError(f"n is a number of steps of at least 1, got {num_steps!r}")
        self._go(num_steps, self._steps_per_s)

    def _go(self, num_steps: int | None, steps_per_s: float | None) -> None:
        with self._changed:
            self._paused, self._steps_left, self._stopped_by = False, num_steps, None
            self._steps_per_s, self._next_at = steps_per_s, 0.0
            self._changed.notify_all()

    def set_breakpoints(self, breakpoints: list[Breakpoint]) -> None:
        with self._changed:
            self._breakpoints = list(breakpoints)

    def submit(self, function: Callable[[], Any]) -> Future[Any]:
        """Run a function in the engine's thread between two steps, paused or not."""
        future: Future[Any] = Future()
        with self._changed:
            self._commands.append((function, future))
            self._changed.notify_all()
        self.on_command()
        return future

    def describe(self) -> dict[str, Any]:
        with self._changed:
            return {
                "paused": self._paused,
                "steps_left": self._steps_left,
                "steps_per_s": self._steps_per_s,
                "stopped_by": self._stopped_by,
                "breakpoints": [breakpoint.describe() for breakpoint in self._breakpoints],
            }

    @property
    def has_commands(self) -> bool:
        return bool(self._commands)

    # -- from the engine's thread

    def may_step(self) -> bool:
        """Wait up to `WAIT_S` until the next step may run. Returns False early if there are commands."""
        deadline = time.monotonic() + WAIT_S
        with self._changed:
            while not self._commands:
                now = time.monotonic()
                if not self._paused and now >= self._next_at:
                    self._in_step = True
                    return True
                if now >= deadline:
                    return False
                self._changed.wait((deadline if self._paused else min(deadline, self._next_at)) - now)
            return False

    def stepped(self, record: dict[str, Any], names: dict[int, str]) -> None:
        """Apply pace, step count and breakpoints after a step; record: its trace record."""
        with self._changed:
            if self._steps_per_s is not None:
                self._next_at = max(time.monotonic(), self._next_at + 1 / self._steps_per_s)
            if self._steps_left is not None:
                self._steps_left -= 1
                if not self._steps_left:
                    self._stop("the requested steps have run")
            for breakpoint in self._breakpoints:
                if what := breakpoint.hit_by(record, names):
                    self._stop(f"breakpoint in step {record['i']}: {what}")

    def left_step(self) -> None:
        with self._changed:
            self._in_step = False
            self._changed.notify_all()

    def run_commands(self) -> None:
        """Run the submitted functions in order. Errors go to their submitters, not to the engine."""
        while self._commands:
            function, future = self._commands.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except Exception as error:
                    future.set_exception(error)

    def close(self) -> None:
        """Cancel what was submitted: the engine ends."""
        while self._commands:
            self._commands.popleft()[1].cancel()

    def _stop(self, why: str) -> None:
        self._paused, self._steps_left, self._stopped_by = True, None, why

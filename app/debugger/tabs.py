"""State of a browser tab in the server: work in a thread, and values that end a moment after the tab was closed.

A reloaded tab is a new one, and takes its value back by name.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from streamlit import runtime
from streamlit.runtime.scriptrunner import get_script_run_ctx

PATIENCE_S = 2.0
"""Seconds that a new tab waits for the old one to close: a reload opens the new connection first, sometimes."""
LEFT_S = 10.0
"""Seconds after which the value of a closed tab is released."""
LOOK_S = 1.0


def tab_id() -> str:
    """Return the id of the tab that this script runs for; a reloaded tab is a new one."""
    context = get_script_run_ctx()
    return "" if context is None else context.session_id


def is_open(tab: str) -> bool:
    """Return whether a tab of this server is connected."""
    return bool(runtime.exists() and runtime.get_instance().is_active_session(tab))


class Job:
    """Work in a thread, such as a run of an experiment. The page polls it."""

    def __init__(self, turn: str, work: Callable[[], Any], stop: Callable[[], None] | None = None) -> None:
        self.turn = turn
        self.began = time.monotonic()
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_stopped = False
        self._stop = stop
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], Any]) -> None:
        try:
            self.result = work()
        except BaseException as error:
            self.error = error

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def stop(self, limit_s: float = 5.0) -> None:
        """End the work. A worker that is just starting is ended again, until the thread has given up."""
        self.is_stopped = True
        until = time.monotonic() + limit_s
        while self._stop is not None and not self.is_done and time.monotonic() < until:
            with suppress(Exception):
                self._stop()
            self._thread.join(0.1)

    def wait(self, limit_s: float) -> None:
        """Wait a moment: quick work needs no progress bar."""
        self._thread.join(limit_s)


class OpenElsewhere(Exception):
    """Raised for a value that another open tab holds."""


class HasOwner(Protocol):
    owner: str
    """The tab."""
    left_at: float | None
    """When its tab was first seen closed."""


T = TypeVar("T", bound=HasOwner)


class Keeper(Generic[T]):
    """Values by name, each of one tab. Values of closed tabs are released."""

    def __init__(self, release: Callable[[T], None], stays_s: float = LEFT_S) -> None:
        """release: ends a value, and calls `drop`. stays_s: seconds that a value stays after its tab was closed."""
        self.held: dict[str, T] = {}
        self._release, self._stays_s = release, stays_s
        self._lost: set[tuple[str, str]] = set()
        """Names, each with a tab that lost the value to another one."""
        self._lock = threading.Lock()
        self._watcher: threading.Thread | None = None

    def hold(self, name: str, value: T) -> T:
        with self._lock:
            self.held[name] = value
            if self._watcher is None or not self._watcher.is_alive():
                self._watcher = threading.Thread(target=self._watch, daemon=True)
                self._watcher.start()
        return value

    def take(self, name: str, tab: str, patience_s: float | None = None) -> T | None:
        """Return the value for a tab, or None for an unknown name. Raises OpenElsewhere.

        A reloaded tab waits until the server has noticed that its predecessor closed; one from which the value was
        taken does not.
        """
        if (name, tab) in self._lost:
            patience_s = 0.0
        until = time.monotonic() + (PATIENCE_S if patience_s is None else patience_s)
        while True:
            with self._lock:
                value = self.held.get(name)
                if value is None:
                    return None
                if value.owner == tab or not is_open(value.owner):
                    value.owner, value.left_at = tab, None
                    self._lost.discard((name, tab))
                    return value
            if time.monotonic() >= until:
                raise OpenElsewhere
            time.sleep(0.1)

    def move(self, name: str, tab: str) -> None:
        """Give the value to another tab; its present one is told so at its next action."""
        with self._lock:
            if (value := self.held.get(name)) is not None:
                self._lost = {(name, value.owner)} | (self._lost - {(name, tab)})
                value.owner, value.left_at = tab, None

    def drop(self, name: str, value: T) -> None:
        """Forget a value, unless another one has its name."""
        with self._lock:
            if self.held.get(name) is value:
                del self.held[name]

    def release_left(self, now: float | None = None) -> None:
        """Note closed tabs, and release their values a little later."""
        now = time.monotonic() if now is None else now
        with self._lock:
            held = list(self.held.values())
        for value in held:
            if is_open(value.owner):
                value.left_at = None
            elif value.left_at is None:
                value.left_at = now
            elif now - value.left_at >= self._stays_s:
                self._release(value)

    def _watch(self) -> None:
        """Look at the tabs, in a thread that lives while there are values."""
        while True:
            time.sleep(LOOK_S)
            with self._lock:
                if not self.held:
                    self._watcher = None
                    return
            self.release_left()

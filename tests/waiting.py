"""Wait for what another thread, task or process does. Nothing else in the tests sleeps (packaging/test_suite.py).

A limit bounds a failure; it is no claim about speed. It is generous, because tests run on busy machines.
"""

from __future__ import annotations

import asyncio
import inspect
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import psutil

T = TypeVar("T")
LIMIT_S = 120.0
_PAUSE_S = 0.005


def wait_until(holds: Callable[[], T], limit_s: float = LIMIT_S) -> T:
    """Ask until the answer is true, and return it. Raises AssertionError after the limit."""
    deadline = time.monotonic() + limit_s
    while not (answer := holds()):
        assert time.monotonic() < deadline, _late(holds, limit_s, answer)
        time.sleep(_PAUSE_S)
    return answer


async def until(holds: Callable[[], T | Awaitable[T]], limit_s: float = LIMIT_S) -> T:
    """Do the same while the other tasks of the event loop run; `holds` may be a coroutine function."""
    deadline = time.monotonic() + limit_s
    while True:
        answer = holds()
        if isinstance(answer, Awaitable):
            answer = await answer
        if answer:
            return answer
        assert time.monotonic() < deadline, _late(holds, limit_s, answer)
        await asyncio.sleep(_PAUSE_S)


@contextmanager
def ends_within(limit_s: float) -> Iterator[None]:
    """Raise AssertionError in a block of the main thread that hangs."""

    def late(*_: object) -> None:
        raise AssertionError(f"still not over after {limit_s:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


async def one_turn() -> None:
    """Let every other task that is ready run once."""
    await asyncio.sleep(0)


def has_ended(process: psutil.Process | int) -> bool:
    """Tell whether a process is gone; one that only its parent has to collect counts as gone."""
    try:
        process = psutil.Process(process) if isinstance(process, int) else process
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _late(holds: Callable[[], object], limit_s: float, answer: object) -> str:
    return f"still {answer!r} after {limit_s:g} s: {inspect.getsource(holds).strip()}"

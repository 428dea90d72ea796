"""Delay Ctrl-C to the end of a step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupt_afterwards() -> Iterator[Callable[[], None]]:
    """Raise KeyboardInterrupt for a Ctrl-C inside the block at its end, so that no state is left half-changed.

    A long block calls the function that it gets at places where it may end earlier.

        with interrupt_afterwards() as may_end_here:
            while there_is_work():
                step()
                may_end_here()

    A second Ctrl-C raises at once and gives the engine up. Only the main thread receives signals; in other threads the
    block runs unchanged, and where Ctrl-C is ignored it stays ignored.
    """
    is_ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    if is_ignored or threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    is_pressed = False

    def remember(_signum: int, _frame: FrameType | None) -> None:
        nonlocal is_pressed
        if is_pressed:
            raise KeyboardInterrupt
        is_pressed = True

    def may_end_here() -> None:
        if is_pressed:
            raise KeyboardInterrupt

    previous = signal.signal(signal.SIGINT, remember)
    try:
        yield may_end_here
    finally:
        signal.signal(signal.SIGINT, previous or signal.SIG_DFL)
    may_end_here()

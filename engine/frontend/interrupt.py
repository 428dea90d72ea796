"""Ctrl-C between steps, never in the middle of one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupt_afterwards() -> Iterator[Callable[[], None]]:
    """Ctrl-C inside the block raises KeyboardInterrupt at its end, so that no state is left half-changed.

    A long block can name places where it may end before: it calls the function that it is given.

        with interrupt_afterwards() as may_end_here:
            while there_is_work():
                step()
                may_end_here()

    A second Ctrl-C does not wait: whoever presses it again gives the engine up. Only the main thread
    receives signals; elsewhere the block runs as it is.
    """
    if threading.current_thread() is not threading.main_thread():
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

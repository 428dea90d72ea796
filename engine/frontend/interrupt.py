"""Ctrl-C between steps, never in the middle of one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupt_afterwards() -> Iterator[None]:
    """Ctrl-C inside the block raises KeyboardInterrupt at its end, so that no state is left half-changed.

    A second Ctrl-C does not wait: whoever presses it again gives the engine up. Only the main thread
    receives signals; elsewhere the block runs as it is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_pressed = False

    def remember(_signum: int, _frame: FrameType | None) -> None:
        nonlocal is_pressed
        if is_pressed:
            raise KeyboardInterrupt
        is_pressed = True

    previous = signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous or signal.SIG_DFL)
    if is_pressed:
        raise KeyboardInterrupt

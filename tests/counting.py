"""Count work instead of measuring time: the same on every machine, busy or not."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def instructions(act: Callable[[], object]) -> int:
    """Return how many instructions of Python `act` runs, with all that it calls. One that enters C counts once."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        count += event == "opcode"
        return trace

    before, collects = sys.gettrace(), gc.isenabled()
    gc.disable()  # what runs then, the callbacks of libraries included, is none of act's work
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()
    return count

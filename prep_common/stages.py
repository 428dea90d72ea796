"""Seconds of a start by stage.

stages = Stages()
load(); stages.end("weights")
warm(); stages.end("warm-up")
stages.text()                    # "weights 0.41 s, warm-up 0.12 s"
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

import psutil


class Stages:
    """Stages of a start in their order, each from the end of the one before it."""

    def __init__(self, began: float | None = None) -> None:
        """began: seconds of time.time() at which the first stage began; None: now."""
        self.seconds: dict[str, float] = {}
        self._last = time.time() if began is None else began

    def end(self, name: str, parts: Mapping[str, float] | None = None) -> None:
        """End a stage now. parts: stages inside it, listed before it; their time is not counted again."""
        now = time.time()
        spent, self._last = max(0.0, now - self._last), now
        parts = parts or {}
        self.seconds |= {**parts, name: max(0.0, spent - sum(parts.values()))}

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    def text(self) -> str:
        """Return all stages in one line."""
        return ", ".join(f"{name} {seconds:.2f} s" for name, seconds in self.seconds.items())


def process_began() -> float:
    """Return the time.time() at which this process was started.

    From its age: psutil adds it to the time of the boot, which Linux tells in whole seconds.
    """
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):  # not Linux
        return float(psutil.Process().create_time())
    return time.time() - age

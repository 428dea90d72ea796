"""A virtual clock that the simulator advances."""

from __future__ import annotations


class VirtualClock:
    """Seconds since the start of the simulation. The scheduler reads it as it would read `time.monotonic`."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

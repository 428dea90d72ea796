"""The event log of a fleet: one JSON line per event, and the changes of the autoscaler among them.

    {"at": 41.2, "kind": "out", "replica": "r3", "replicas": 3, "signal": 9.5, "why": "load above 8"}

`at` is seconds since the fleet's start; the first line tells the time of day. Kinds: start, warm, ready, out, in,
wake, drain, stopped, died, refused, roll, end.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import cast

from engine.sim.autoscaler import EventKind, ScaleEvent, count_thrash

KEPT = 1000
"""Events in memory."""


@dataclass(frozen=True)
class FleetEvent:
    at: float
    kind: str
    replica: str = ""
    replicas: int = 0
    """Replicas wanted, after the event."""
    signal: float | None = None
    why: str = ""
    start_s: float | None = None
    """Seconds of a replica's start, in its event "warm"."""


class EventLog:
    """Events in memory, and in a file if the settings name one."""

    def __init__(self, path: Path | None, tell: Callable[[FleetEvent], None] | None = None) -> None:
        """tell: called with each event. Raises OSError if the file cannot be written."""
        self.began = time.monotonic()
        self.events: deque[FleetEvent] = deque(maxlen=KEPT)
        self._tell = tell
        self._file = None if path is None else path.open("a", encoding="utf-8")

    def now(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self.began

    def add(
        self, kind: str, replica: str = "", replicas: int = 0, *, why: str = "", **figures: float | None
    ) -> None:
        """Log an event. figures: signal, start_s."""
        event = FleetEvent(round(self.now(), 3), kind, replica, replicas, why=why, **figures)
        self.events.append(event)
        if self._tell is not None:
            self._tell(event)
        if self._file is not None:
            time_of_day = {"time": datetime.now().astimezone().isoformat()} if len(self.events) == 1 else {}
            self._file.write(json.dumps(asdict(event) | time_of_day) + "\n")
            self._file.flush()

    def scale_events(self) -> list[ScaleEvent]:
        """Return the autoscaler's changes, as the simulator has them."""
        return [
            ScaleEvent(event.at, cast(EventKind, event.kind), index, event.signal or 0.0, event.replicas)
            for index, event in enumerate(self.events)
            if event.kind in ("out", "in")
        ]

    def thrash(self) -> int:
        """Count changes that reverted the previous one within 15 minutes."""
        return count_thrash(self.scale_events())

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

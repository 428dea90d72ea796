"""Start and drain replicas by a signal with hysteresis.

    signal  |        ____            ______
    out at  |-------/----\\----------/------\\-------   held for `sustain_out`: start a replica
            |      /      \\        /        \\
    in at   |-----/--------\\------/----------\\-----   held for `sustain_in`: drain one
            +------------------------------------- t
                     |<-- cooldown_out -->|               after any change, wait this long before growing
                     |<------- cooldown_in ------->|      and this long before shrinking

Growing late loses requests, shrinking late costs money, so the second may be slow: asymmetric cooldowns keep a load
that swings from starting and stopping replicas with every swing. A replica that starts serves after `cold_start`, or
after `warm_start` if one waits in the warm pool (loaded and paid for, not serving).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar, Literal

from engine.config import ConfigError

Signal = Literal["queue", "load", "kv", "rate"]
EventKind = Literal["out", "in", "ready", "stopped"]
SIGNALS: dict[str, str] = {
    "queue": "waiting requests per replica",
    "load": "unfinished requests per replica",
    "kv": "mean KV cache usage, 0 to 1",
    "rate": "arrivals per second and replica",
}


@dataclass(frozen=True)
class Schedule:
    """Minimum number of replicas between two times, for expected load."""

    start: float
    end: float
    min_replicas: int


@dataclass(frozen=True)
class AutoscalerConfig:
    """Settings of the autoscaler. Times are in seconds."""

    __pydantic_config__: ClassVar = {"extra": "forbid", "allow_inf_nan": False}
    """For settings of a fleet, which pydantic reads."""

    signal: Signal
    out_above: float
    in_below: float
    min_replicas: int = 1
    max_replicas: int = 8
    sustain_out: float = 30.0
    sustain_in: float = 60.0
    cooldown_out: float = 120.0
    cooldown_in: float = 600.0
    cold_start: float = 120.0
    warm_start: float = 5.0
    warm_pool: int = 0
    interval: float = 10.0  # seconds between two samples of the signal
    max_step: float = 0.0  # largest change at once, as a share of the replicas; 0: one replica
    schedules: tuple[Schedule, ...] = ()

    def __post_init__(self) -> None:
        if self.signal not in SIGNALS:
            raise ConfigError(f"signal must be one of {', '.join(SIGNALS)}, got {self.signal!r}")
        if not self.in_below < self.out_above:
            raise ConfigError(
                f"in_below ({self.in_below}) must be less than out_above ({self.out_above}): "
                "between them the number of replicas stays"
            )
        if not 0 <= self.min_replicas <= self.max_replicas or self.max_replicas < 1:
            given = f"{self.min_replicas} and {self.max_replicas}"
            raise ConfigError(f"0 <= min_replicas <= max_replicas, which is at least 1, got {given}")
        if not self.interval > 0:
            raise ConfigError(f"interval must be positive, got {self.interval}")
        if not 0 <= self.max_step <= 10:
            raise ConfigError(f"max_step is a share of the replicas from 0 to 10, got {self.max_step}")
        times = ("sustain_out", "sustain_in", "cooldown_out", "cooldown_in", "cold_start", "warm_start")
        for name in (*times, "warm_pool"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be finite and not negative, got {getattr(self, name)}")


@dataclass(frozen=True)
class ScaleEvent:
    time: float
    kind: EventKind
    replica: int
    signal: float
    replicas: int  # replicas that serve or start, after the event


@dataclass
class Autoscaler:
    """Samples a signal and decides how many replicas to add (positive) or drain (negative).

    With `max_step`, a change is as large as needed to bring the signal to the middle of the band.
    """

    config: AutoscalerConfig
    last_change: float = float("-inf")
    overload_seconds: float = 0.0  # above the threshold, but in a cooldown or at the maximum of replicas
    _above_since: float | None = field(default=None, repr=False)
    _below_since: float | None = field(default=None, repr=False)

    def least(self, now: float) -> int:
        """Return the minimum number of replicas now, from the settings and the schedule."""
        due = [plan.min_replicas for plan in self.config.schedules if plan.start <= now < plan.end]
        return min(self.config.max_replicas, max([self.config.min_replicas, *due]))

    def decide(self, now: float, signal: float, num_replicas: int) -> int:
        """Return the change. `num_replicas` includes starting replicas."""
        config, least = self.config, self.least(now)
        if num_replicas == 0 and signal > 0:  # of the requests that wait; no cooldown keeps them waiting
            least = max(1, least)
        if num_replicas < least:
            return self._change(now, least - num_replicas if config.max_step else 1)
        self._above_since = _since(self._above_since, now, signal > config.out_above)
        self._below_since = _since(self._below_since, now, signal < config.in_below)
        if self._above_since is not None and now - self._above_since >= config.sustain_out:
            room = config.max_replicas - num_replicas
            if room > 0 and now - self.last_change >= config.cooldown_out:
                return self._change(now, min(room, self._size(signal, num_replicas)))
            self.overload_seconds += config.interval
        if self._below_since is not None and now - self._below_since >= config.sustain_in:
            room = num_replicas - least
            if room > 0 and now - self.last_change >= config.cooldown_in:
                return self._change(now, -min(room, self._size(signal, num_replicas)))
        return 0

    def _size(self, signal: float, num_replicas: int) -> int:
        """Return the replicas to start or drain."""
        middle = (self.config.out_above + self.config.in_below) / 2
        wanted = abs(math.ceil(num_replicas * signal / middle) - num_replicas)
        return max(1, min(wanted, int(self.config.max_step * num_replicas)))

    def _change(self, now: float, by: int) -> int:
        self.last_change, self._above_since, self._below_since = now, None, None
        return by


def _since(start: float | None, now: float, holds: bool) -> float | None:
    if not holds:
        return None
    return now if start is None else start


def count_thrash(events: list[ScaleEvent], window: float = 900.0) -> int:
    """Count changes that reverted the previous one within `window` seconds."""
    changes = [event for event in events if event.kind in ("out", "in")]
    return sum(b.kind != a.kind and b.time - a.time <= window for a, b in pairwise(changes))

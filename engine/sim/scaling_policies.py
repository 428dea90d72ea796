"""Policies that decide how many replicas a fleet should have; the fleets call them every `interval` seconds.

    Asymmetric   this engine's autoscaler: a band, fast out, slow in, a schedule (autoscaler.py)
    Hpa          Kubernetes' HorizontalPodAutoscaler: ceil(current x metric / target)
    Predictive   a straight line through the recent arrival rate, read where a new replica would be ready

Kubernetes' rules, from its replica_calculator.go and horizontal.go (pkg/controller/podautoscaler), with the defaults of
autoscaling/v2: a look every 15 s, tolerance 0.1, growth by at most max(4 pods, 100 %) in 15 s without stabilisation,
and shrinking to the highest recommendation of the last 300 s. A metric per pod counts pods that are not ready as 0 when
it would grow the fleet; an external average (KEDA on vllm:num_requests_waiting) is ceil(total / target).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from engine.sim.autoscaler import Autoscaler, AutoscalerConfig


class Look(NamedTuple):
    """A fleet at one moment. Totals are over the ready replicas."""

    now: float
    ready: int
    starting: int
    waiting: float  # requests
    unfinished: float  # requests, waiting ones included
    kv: float  # sum of KV cache usages
    rate: float  # arrivals per second since the last look
    busy: float  # mean share of the time in steps

    @property
    def serving(self) -> int:
        return self.ready + self.starting


class ScalingPolicy(Protocol):
    interval: float

    def desired(self, look: Look) -> int:
        """Return the replicas that should serve or start."""
        ...


def signal_of(look: Look, signal: str, replicas: int) -> float:
    """Return a signal of AutoscalerConfig per replica."""
    total = {"queue": look.waiting, "load": look.unfinished, "kv": look.kv, "rate": look.rate}[signal]
    return total / max(1, replicas)


class Line:
    """A straight line through the arrival rates of the last `memory` seconds, by least squares."""

    def __init__(self, memory: float) -> None:
        self.memory = memory
        self._rates: deque[tuple[float, float]] = deque()

    def add(self, now: float, rate: float) -> None:
        self._rates.append((now, rate))
        while self._rates[0][0] < now - self.memory:
            self._rates.popleft()

    def at(self, when: float) -> float:
        """Return the rate at a time, 0 at least."""
        count = len(self._rates)
        mean_t = sum(t for t, _ in self._rates) / count
        mean_y = sum(y for _, y in self._rates) / count
        spread = sum((t - mean_t) ** 2 for t, _ in self._rates)
        if not spread:
            return mean_y
        slope = sum((t - mean_t) * (y - mean_y) for t, y in self._rates) / spread
        return max(0.0, mean_y + slope * (when - mean_t))


class Asymmetric:
    """The autoscaler with hysteresis, asymmetric cooldowns and schedules.

    With `max_step` it counts starting replicas, too: they will take their share. With `memory`, the signal "rate" is
    the higher of the rate now and the one that a line predicts for the end of a cold start.
    """

    def __init__(self, config: AutoscalerConfig, memory: float = 0.0) -> None:
        self.scaler = Autoscaler(config)
        self.interval = config.interval
        self.line = Line(memory) if memory else None

    def desired(self, look: Look) -> int:
        config = self.scaler.config
        replicas = look.serving if config.max_step else look.ready
        if self.line is not None:
            self.line.add(look.now, look.rate)
            look = look._replace(rate=max(look.rate, self.line.at(look.now + config.cold_start)))
        signal = signal_of(look, config.signal, replicas)
        return look.serving + self.scaler.decide(look.now, signal, look.serving)


@dataclass
class Hpa:
    """The HorizontalPodAutoscaler on one metric."""

    metric: Callable[[Look], float]  # total over the ready pods
    target: float  # average per pod
    min_replicas: int = 1
    max_replicas: int = 1000
    is_external: bool = False
    interval: float = 15.0
    tolerance: float = 0.1
    window: float = 300.0
    _recommended: deque[tuple[float, int]] = field(default_factory=deque, repr=False)

    def desired(self, look: Look) -> int:
        wanted = min(self.max_replicas, max(self.min_replicas, self._recommend(look)))
        recent = self._recommended
        if not recent:
            recent.append((look.now, look.serving))
        recent.append((look.now, wanted))
        while recent[0][0] < look.now - self.window:
            recent.popleft()
        current = look.serving
        if wanted < current:
            return min(current, max(count for _, count in recent))
        return min(wanted, max(current + 4, 2 * current))

    def _recommend(self, look: Look) -> int:
        current, total = look.serving, self.metric(look)
        if self.is_external:
            ratio = total / (self.target * max(1, current))
            return current if abs(ratio - 1) <= self.tolerance else math.ceil(total / self.target - 1e-9)
        ratio = total / max(1, look.ready) / self.target
        if ratio > 1 and look.starting:
            with_unready = total / current / self.target
            if with_unready < 1 or abs(with_unready - 1) <= self.tolerance:
                return current
            return max(current, math.ceil(with_unready * current - 1e-9))
        return current if abs(ratio - 1) <= self.tolerance else math.ceil(ratio * look.ready - 1e-9)


@dataclass
class Predictive:
    """Replicas for the arrival rate that a straight line predicts."""

    per_replica: float  # requests per second for which one replica is planned
    horizon: float  # seconds ahead: the start of a replica
    min_replicas: int = 1
    max_replicas: int = 1000
    interval: float = 15.0
    memory: float = 600.0  # seconds of the line
    hold: float = 300.0  # shrink to the highest wish of these seconds
    _wishes: deque[tuple[float, int]] = field(default_factory=deque, repr=False)

    def __post_init__(self) -> None:
        self._line = Line(self.memory)

    def desired(self, look: Look) -> int:
        self._line.add(look.now, look.rate)
        rate = max(look.rate, self._line.at(look.now + self.horizon))
        wish = min(self.max_replicas, max(self.min_replicas, math.ceil(rate / self.per_replica)))
        self._wishes.append((look.now, wish))
        while self._wishes[0][0] < look.now - self.hold:
            self._wishes.popleft()
        if wish < look.serving:
            return min(look.serving, max(count for _, count in self._wishes))
        return wish

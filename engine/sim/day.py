"""Traffic of days: a daily profile, a level that differs from day to day, and spikes that no schedule knows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from engine.config import ConfigError

DAY = 86_400.0


@dataclass(frozen=True)
class DayTraffic:
    """Arrivals over days. The same seed gives the same arrivals."""

    hours: tuple[float, ...]  # expected requests per second at the middle of each hour; between them a line
    days: int = 1
    seed: int = 0
    level_sigma: float = 0.12  # of the logarithm of a day's level
    spikes_per_day: float = 3.0
    spike_height: tuple[float, float] = (0.3, 1.0)  # added share of the rate
    spike_seconds: tuple[float, float] = (600.0, 2400.0)
    ramp_seconds: tuple[float, float] = (60.0, 600.0)

    def __post_init__(self) -> None:
        if len(self.hours) != 24 or min(self.hours) < 0 or not sum(self.hours):
            raise ConfigError(f"a day has 24 rates, some positive and none negative; got {self.hours}")
        if not 1 <= self.days <= 366:
            raise ConfigError(f"days must be 1 to 366, got {self.days}")

    def expected(self, when: float) -> float:
        """Return the rate by the profile: what a schedule can know."""
        hour = when / 3600 - 0.5
        index, share = math.floor(hour), hour - math.floor(hour)
        return self.hours[index % 24] * (1 - share) + self.hours[(index + 1) % 24] * share

    def rates(self, tick: float) -> list[float]:
        """Return the true mean rate in each tick."""
        rng = Random(f"day-{self.seed}")
        levels = [rng.lognormvariate(-(self.level_sigma**2) / 2, self.level_sigma) for _ in range(self.days)]
        spikes = [self._spike(rng) for _ in range(_poisson(rng, self.spikes_per_day * self.days))]
        rates = []
        for number in range(int(self.days * DAY / tick)):
            when = (number + 0.5) * tick
            extra = sum(_shape(when, *spike) for spike in spikes)
            rates.append(self.expected(when) * levels[int(when // DAY)] * (1 + extra))
        return rates

    def _spike(self, rng: Random) -> tuple[float, float, float, float]:
        """Draw (start, ramp, length, height)."""
        start = rng.uniform(0, self.days * DAY)
        ramp, length = rng.uniform(*self.ramp_seconds), rng.uniform(*self.spike_seconds)
        return start, ramp, length, rng.uniform(*self.spike_height)

    def arrivals(self, tick: float) -> list[int]:
        """Return the number of requests in each tick: Poisson."""
        rng = Random(f"arrivals-{self.seed}")
        return [_poisson(rng, rate * tick) for rate in self.rates(tick)]


def _shape(when: float, start: float, ramp: float, length: float, height: float) -> float:
    """A trapezium: up in `ramp`, level for `length`, down in `ramp`."""
    at = when - start
    return height * max(0.0, min(1.0, at / ramp, (length + 2 * ramp - at) / ramp))


def _poisson(rng: Random, mean: float) -> int:
    if mean > 60:
        return max(0, round(rng.gauss(mean, math.sqrt(mean))))
    limit, product, count = math.exp(-mean), rng.random(), 0
    while product > limit:
        product *= rng.random()
        count += 1
    return count


def moments(arrivals: Sequence[int], tick: float, seed: int = 0) -> list[float]:
    """Return arrival times: uniform within each tick, in order."""
    rng = Random(f"moments-{seed}")
    return [
        number * tick + offset
        for number, count in enumerate(arrivals)
        for offset in sorted(rng.uniform(0, tick) for _ in range(count))
    ]

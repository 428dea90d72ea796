"""Scaling policies against each other: same traffic, same cost, several seeds.

1. The budget is `generosity` times the replica hours of an oracle that always has ceil(rate / planned rate) replicas.
2. On days for tuning, each contender tries settings up to this cost (bisection of its cost knob, for every choice of
   its other knob); the one with the fewest violations stays, and of equal ones the dearest.
3. The other days, which no setting has seen, give the result.
4. The HPAs also run there with their settings next to the first contender's cost, one cheaper and one dearer, and with
   the cheapest that violates as little: the comparison holds where no setting of theirs costs the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from statistics import fmean

from engine.sim.autoscaler import AutoscalerConfig, Schedule
from engine.sim.day import DAY, DayTraffic
from engine.sim.fluid import TICK, Costs, DayReport, FluidFleet
from engine.sim.scaling_policies import Asymmetric, Hpa, Predictive, ScalingPolicy

LOWER, HIGHER, AS_GOOD = "next lower cost", "next higher cost", "as few misses"
"""Roles of settings that are compared with another contender."""
SLOT = 1800.0
"""Seconds between two entries of a schedule."""
CLOSE = 0.01
"""Allowed share over the budget."""
KNOBS, HALVINGS = 8, 6
"""Settings of the cost knob in a geometric series, and halvings wherever the budget lies between two of them."""


@dataclass(frozen=True)
class Service:
    """A service to scale: costs of a replica, limits, start, expected day."""

    costs: Costs
    planned: float  # requests per second for which a replica is planned
    ttft: float
    tpot: float
    cold_start: float
    traffic: DayTraffic

    @property
    def peak(self) -> int:
        """Replicas at the busiest expected hour."""
        return math.ceil(max(self.traffic.hours) / self.planned)

    @property
    def most(self) -> int:
        """Maximum of every policy: a quota."""
        return math.ceil(1.6 * self.peak)

    def day(self, seed: int) -> list[int]:
        fields = vars(self.traffic) | {"seed": seed}
        return DayTraffic(**fields).arrivals(TICK)

    def run(self, policy: ScalingPolicy, arrivals: Sequence[int], keeps_levels: bool = False) -> DayReport:
        start = max(1, math.ceil(self.traffic.expected(0.0) / self.planned))
        fleet = FluidFleet(
            self.costs, policy, self.cold_start, self.ttft, self.tpot, start, keeps_levels=keeps_levels
        )
        return fleet.run(arrivals)

    def oracle_hours(self, arrivals: Sequence[int], window: int = 12) -> float:
        """Return the hours of a fleet that always has the planned number for the minute's traffic."""
        chunks = [sum(arrivals[at : at + window]) for at in range(0, len(arrivals), window)]
        return (
            sum(math.ceil(chunk / (window * TICK * self.planned)) for chunk in chunks) * window * TICK / 3600
        )

    def schedule(self, margin: float) -> tuple[Schedule, ...]:
        """Return minimum replicas for `margin` times the expected rate, early enough for a cold start."""
        slots = []
        for number in range(int(self.traffic.days * DAY / SLOT)):
            start, end = number * SLOT, (number + 1) * SLOT
            moments = [start + (end + self.cold_start - start) * part / 4 for part in range(5)]
            rate = max(map(self.traffic.expected, moments))
            slots.append(Schedule(start, end, max(1, math.ceil(margin * rate / self.planned))))
        return tuple(slots)


Make = Callable[[Service, float, float], ScalingPolicy]


@dataclass(frozen=True)
class Contender:
    """A family of policies. `make(service, choice, knob)`; the knob sets the cost."""

    name: str
    words: str
    choices: tuple[float, ...]
    knob: tuple[float, float]  # cheapest and dearest value; for counts relative to the peak
    make: Make


def _band(
    service: Service,
    share: float,
    schedules: tuple[Schedule, ...] = (),
    memory: float = 0.0,
    out_above: float = 1.04,
    in_below: float = 0.85,
    **settings: float,
) -> Asymmetric:
    """The engine's autoscaler on the arrival rate; the middle of its band is the planned rate / `share`."""
    middle = service.planned / share
    times = {"sustain_out": 0.0, "sustain_in": 120.0, "cooldown_out": 15.0, "cooldown_in": 600.0} | settings
    config = AutoscalerConfig(
        "rate",
        out_above=out_above * middle,
        in_below=in_below * middle,
        max_replicas=service.most,
        cold_start=service.cold_start,
        interval=15.0,
        max_step=1.0,
        schedules=schedules,
        **times,  # type: ignore[arg-type]
    )
    return Asymmetric(config, memory)


def _count(service: Service, share: float) -> int:
    return max(1, round(share * service.peak))


def _busy(service: Service, target: float, share: float) -> Hpa:
    most = service.most if target > 0.9 else _count(service, share)
    least = _count(service, share) if target > 0.9 else 1
    return Hpa(lambda look: look.busy * look.ready, target, least, most)


def _queue(service: Service, target: float, share: float) -> Hpa:
    return Hpa(lambda look: look.waiting, target, _count(service, share), service.most, is_external=True)


def _load(service: Service, floor: float, load: float) -> Hpa:
    return Hpa(lambda look: look.unfinished, load, _count(service, floor), service.most)


def _predictive(service: Service, memory: float, share: float) -> Predictive:
    per_replica = service.planned / share
    return Predictive(per_replica, service.cold_start, 1, service.most, memory=memory)


def _ours(service: Service, margin: float, share: float) -> Asymmetric:
    return _band(service, share, service.schedule(margin), memory=180.0)


CONTENDERS = (
    Contender("asymmetric", "band on the predicted rate, out fast, in slowly, schedule", (0.8, 0.95, 1.1),
              (0.5, 2.0), _ours),
    Contender("no schedule", "the same without the schedule", (300.0, 600.0),
              (0.5, 2.0), lambda service, slow, share: _band(service, share, (), 180.0, cooldown_in=slow)),
    Contender("no prediction", "the same on the rate now, without schedule", (300.0, 600.0),
              (0.5, 2.0), lambda service, slow, share: _band(service, share, cooldown_in=slow)),
    Contender("symmetric", "the same, out as slowly as in", (120.0, 300.0, 600.0), (0.5, 2.0),
              lambda service, wait, share: _band(service, share, cooldown_in=wait, cooldown_out=wait)),
    Contender("HPA queue", "Kubernetes' HPA on waiting requests", (1.0, 4.0, 16.0, 1000.0), (0.1, 1.5), _queue),
    Contender("HPA busy", "Kubernetes' HPA on GPU utilisation", (0.7, 0.95), (0.1, 2.0), _busy),
    Contender("HPA load", "Kubernetes' HPA on unfinished requests", (0.05, 0.2, 0.35), (4.0, 200.0), _load),
    Contender("predictive", "line through the arrival rate", (180.0, 600.0, 1200.0), (0.5, 2.0), _predictive),
)  # fmt: skip


@dataclass(frozen=True)
class Tried:
    """A setting of a contender on the tuning days: means of replica hours and of the share of violations."""

    hours: float
    violated: float
    choice: float
    knob: float


@dataclass
class Result:
    """A tuned contender on the test days."""

    name: str
    words: str
    setting: Tried
    meets_budget: bool  # on the tuning days
    tried: list[Tried]
    reports: list[DayReport]

    def mean(self, figure: Callable[[DayReport], float]) -> float:
        return fmean(map(figure, self.reports))


def tune(service: Service, contender: Contender, days: Sequence[Sequence[int]], budget: float) -> Result:
    """Return the contender, without reports, with the fewest violations within the budget, else with the lowest cost.

    Of settings without violations, the dearest within the budget stays.
    """
    low, high = contender.knob
    knobs = [low * (high / low) ** (number / (KNOBS - 1)) for number in range(KNOBS)]

    def cost_of(choice: float, knob: float) -> float:
        """Try a setting; return its cost over the budget, less 1."""
        reports = [service.run(contender.make(service, choice, knob), day) for day in days]
        hours = fmean(report.replica_hours for report in reports)
        tried.append(Tried(hours, fmean(report.violated for report in reports), choice, knob))
        return hours / budget - 1

    def beyond(setting: Tried) -> float:
        return max(0.0, setting.hours / budget - 1 - CLOSE)

    tried: list[Tried] = []
    for choice in contender.choices:
        costs = [cost_of(choice, knob) for knob in knobs]
        for (left, cost), (right, next_cost) in pairwise(zip(knobs, costs, strict=True)):
            if (cost > 0) == (next_cost > 0):
                continue  # the budget is not between these two
            for _ in range(HALVINGS):
                middle = math.sqrt(left * right)
                middle_cost = cost_of(choice, middle)
                if abs(middle_cost) <= CLOSE / 2:
                    break
                left, right = (middle, right) if (middle_cost > 0) == (cost > 0) else (left, middle)
    best = min(tried, key=lambda setting: (beyond(setting), setting.violated, -setting.hours))
    return Result(contender.name, contender.words, best, not beyond(best), tried, [])


def around(tried: Sequence[Tried], ours: Tried) -> dict[str, Tried]:
    """Return the settings that show whether another one is better: of the same cost, or of as few violations.

    Only settings that matter: none costs less and violates less. A role is absent if no setting has it.
    """
    front: list[Tried] = []
    for setting in sorted(tried, key=lambda setting: (setting.hours, setting.violated)):
        if not front or setting.violated < front[-1].violated:
            front.append(setting)
    below = [setting for setting in front if setting.hours <= ours.hours]
    above = front[len(below) :]
    as_good = [setting for setting in above[1:] if setting.violated <= ours.violated]
    by_role = {LOWER: below[-1:], HIGHER: above[:1], AS_GOOD: as_good[:1]}
    return {role: settings[0] for role, settings in by_role.items() if settings}


@dataclass
class Race:
    budget: float  # replica hours, mean over the tuning days
    oracle: float  # replica hours of the oracle, mean over the test days
    results: list[Result]
    seeds: list[int]
    rivals: list[tuple[str, Result]]
    """Role and result of the settings of each HPA that are next to the first contender (`around`), on the test days."""


def race(
    service: Service,
    seeds: int = 10,
    generosity: float = 1.0,
    num_tuning: int = 3,
    contenders: Sequence[Contender] = CONTENDERS,
    tell: Callable[[str], None] = lambda words: None,
) -> Race:
    """Tune every contender on `num_tuning` days and run it on `seeds` other days."""
    tuning = [service.day(1000 + number) for number in range(num_tuning)]
    budget = generosity * fmean(map(service.oracle_hours, tuning))
    numbers = list(range(service.traffic.seed, service.traffic.seed + seeds))
    days = [service.day(seed) for seed in numbers]
    results = []
    for contender in contenders:
        tell(contender.name)
        results.append(tune(service, contender, tuning, budget))
    rivals = [
        (role, replace(result, setting=setting, reports=[]))
        for result in results
        for role, setting in around(result.tried, results[0].setting).items()
        if result.name.startswith("HPA")
    ]
    by_name = {contender.name: contender for contender in contenders}
    for result, day in product([*results, *(result for _, result in rivals)], days):
        contender = by_name[result.name]
        policy = contender.make(service, result.setting.choice, result.setting.knob)
        result.reports.append(service.run(policy, day, keeps_levels=True))
    oracle = fmean(map(service.oracle_hours, days))
    return Race(budget, oracle, results, numbers, rivals)

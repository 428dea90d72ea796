"""A fleet as a fluid: requests are amounts, replicas are alike, and a step of the clock is seconds instead of a token.

    arrivals --> waiting W --> running X --> done          N ready replicas, each with a batch of X / N
                     |              |
            until X = N x limit     X / (TTFT + (output - 1) x step) per second
                                                  step = D(X / N) / (1 - rate x prompt cost)

The costs of a step are those of `steady_state.py`, which has the same formulas for a load that stays; here the load
changes, and a queue grows while the fleet is too small. A day of 17,280 ticks takes a tenth of a second for any number
of replicas. tests/sim/test_autoscale.py compares it with the exact fleet (`fleet.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.sim.scaling_policies import Look, ScalingPolicy
from engine.sim.steady_state import Replica

TICK = 5.0
"""Seconds."""
MOST_PREFILL = 0.95
"""Largest share of a replica's time that prompts may take in the formula for a step."""


class Costs:
    """Tabulated step costs of one replica, by batch."""

    def __init__(self, replica: Replica) -> None:
        self.limit = replica.batch_limit
        self.output = replica.traffic.output
        self.held = replica.held
        self.most = replica.most_requests_per_s()
        batches = range(math.ceil(self.limit) + 1)
        self.decode = [replica.decode_step(max(1, batch)) for batch in batches]
        self.prompt = [replica.prompt_cost(batch) for batch in batches]

    def step(self, batch: float, rate: float) -> tuple[float, float]:
        """Return (step, TTFT without a queue) at `rate` requests per second and replica: `Replica._with`."""
        index = int(batch)
        decode, prompt = self.decode[index], self.prompt[index]
        share = min(rate * prompt, MOST_PREFILL)
        step = decode / (1 - share)
        biased = step + prompt * share / (1 - share * share)
        return step, biased / 2 + decode + prompt + share * biased


@dataclass
class DayReport:
    """Figures of a run."""

    num_requests: int = 0
    violations: float = 0.0  # requests over a limit
    replica_seconds: float = 0.0  # billed: from the start of a replica to the end of its last request
    changes: int = 0
    thrash: int = 0  # changes that reverted the previous one within 15 minutes
    most_waiting: float = 0.0
    most_replicas: int = 0
    times: list[float] = field(default_factory=list)  # one entry per look, as the lists below
    replicas: list[int] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)

    @property
    def violated(self) -> float:
        """Share of the requests over a limit."""
        return self.violations / self.num_requests if self.num_requests else 0.0

    @property
    def replica_hours(self) -> float:
        return self.replica_seconds / 3600


@dataclass
class FluidFleet:
    """Replicas under a policy. `ttft` and `tpot` are limits in seconds."""

    costs: Costs
    policy: ScalingPolicy
    cold_start: float
    ttft: float
    tpot: float
    replicas: int
    keeps_levels: bool = False

    def run(self, arrivals: Sequence[int], tick: float = TICK) -> DayReport:
        """Serve the arrivals of every tick."""
        report, policy, costs = DayReport(), self.policy, self.costs
        ready, starting = self.replicas, list[float]()  # starting: when each is ready
        waiting = running = 0.0
        next_look, since, billed = policy.interval, 0, 0.0
        last_change, last_sign = -math.inf, 0
        report.num_requests = sum(arrivals)
        for number, count in enumerate(arrivals):
            now = number * tick
            while starting and starting[0] <= now:
                starting.pop(0)
                ready += 1
            if now >= next_look:
                look = self._see(now, ready, len(starting), waiting, running, since / policy.interval)
                change = policy.desired(look) - look.serving
                if change < 0:  # replicas that start are cancelled first
                    cancelled = min(-change, len(starting))
                    del starting[len(starting) - cancelled :]
                    leaving = min(-change - cancelled, ready - 1)
                    billed += leaving * costs.output * costs.step(running / ready, 0.0)[0]  # draining
                    running -= running * leaving / ready
                    ready -= leaving
                starting += [now + self.cold_start] * max(0, change)
                if change:
                    sign = 1 if change > 0 else -1
                    report.changes += 1
                    report.thrash += sign == -last_sign and now - last_change <= 900
                    last_change, last_sign = now, sign
                if self.keeps_levels:
                    report.times.append(now)
                    report.replicas.append(ready + len(starting))
                    report.rates.append(look.rate)
                next_look, since = next_look + policy.interval, 0
            since += count
            before = waiting
            waiting, running, step, first = self._advance(ready, waiting, running, count, tick)
            if count:
                limits = (self.ttft - first, step > self.tpot)
                report.violations += count * _late(before, waiting, ready * costs.most, *limits)
            if waiting > report.most_waiting:
                report.most_waiting = waiting
            serving = ready + len(starting)
            if serving > report.most_replicas:
                report.most_replicas = serving
            billed += serving * tick
        report.replica_seconds = billed
        return report

    def _advance(
        self, ready: int, waiting: float, running: float, arrivals: int, tick: float
    ) -> tuple[float, float, float, float]:
        """Return (waiting, running, step, TTFT without a queue) after a tick."""
        costs, offered = self.costs, waiting + arrivals
        rate = min(offered / (tick * ready), costs.most)
        step, first = costs.step(min(running / ready, costs.limit), rate)
        stays = 1 + tick / (
            first + (costs.output - 1) * step
        )  # implicit: stable for ticks longer than a request
        room = ready * costs.limit * stays - running
        admitted = min(offered, max(0.0, room), ready * costs.most * tick)
        return offered - admitted, (running + admitted) / stays, step, first

    def _see(
        self, now: float, ready: int, starting: int, waiting: float, running: float, rate: float
    ) -> Look:
        busy = 1 - math.exp(-running / ready)
        kv = running / self.costs.limit  # sum over replicas of their share
        return Look(now, ready, starting, waiting, running + waiting, kv, rate, busy)


def _late(before: float, after: float, throughput: float, slack: float, too_slow: bool) -> float:
    """Return the share of a tick's requests that miss a limit; the queue changes evenly from `before` to `after`."""
    if too_slow or slack <= 0:
        return 1.0
    first, last = before / throughput, after / throughput
    low, high = min(first, last), max(first, last)
    if high <= slack:
        return 0.0
    return 1.0 if low >= slack else (high - slack) / (high - low)

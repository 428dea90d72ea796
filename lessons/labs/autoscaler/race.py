"""Race of the lab autoscaler: a simulated fleet under loads that rise and fall. Virtual time, so exact everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from engine.sim.autoscaler import AutoscalerConfig
from engine.sim.workload import SimRequest
from lessons.course.checking import Learner
from lessons.labs.autoscaler.checks import CONFIG, fleet, settings_of, wave
from lessons.labs.racing import Differences, Race, all_generated, racer
from prep_common.sandbox import Guest

Track = tuple[str, AutoscalerConfig, list[SimRequest]]


class ByThreshold:
    """The naive scaler: no sustained signal, no cooldown."""

    def __init__(self, config: AutoscalerConfig) -> None:
        self.config = config

    def decide(self, now: float, signal: float, replicas: int) -> int:
        if signal > self.config.out_above and replicas < self.config.max_replicas:
            return 1
        return -int(signal < self.config.in_below and replicas > self.config.min_replicas)


class Fixed:
    """No autoscaler: the fleet keeps its size."""

    def decide(self, now: float, signal: float, replicas: int) -> int:
        return 0


def tracks(seed: int) -> Iterator[Track]:
    """Yield name, settings and requests: three fixed loads, and one that the seed draws."""
    rng = Random(seed)
    yield "chat", CONFIG, wave([(40, 2), (120, 9), (150, 2)], (300, 900), (80, 200))
    yield "long documents", CONFIG, wave([(40, 0.5), (120, 5), (150, 0.5)], (4000, 7000), (30, 90))
    yield "agents", CONFIG, wave([(45, 2), (45, 22)] * 3, (1000, 2000), (20, 60))
    phases = [(rng.randint(20, 90), rng.uniform(1, 11)) for _ in range(4)]
    yield f"seed {seed}", CONFIG, wave(phases, (300, 1500), (20, 160), seed)


def race(yours: str, ours: str, seed: int = 0) -> Race:
    rows, ratios, differences = [], [], Differences("autoscaler", "change")
    with racer(yours) as your_guest, racer(ours) as our_guest:
        guests = your_guest, our_guest
        for track, config, requests in tracks(seed):
            full = replace(config, min_replicas=config.max_replicas)
            scalers: dict[str, tuple[Any, AutoscalerConfig]] = {
                "yours": (Learner(your_guest).new("Scaler", **settings_of(config)), config),
                "ours": (Learner(our_guest).new("Scaler", **settings_of(config)), config),
                "naive": (ByThreshold(config), config),
                "always four": (Fixed(), full),
            }
            worst, told = {}, {}
            for name, (scaler, settings) in scalers.items():
                report, told[name] = fleet(scaler, settings, requests)
                all_generated(name, report.run, requests)
                ttft = report.run.ttft
                assert ttft is not None, "a first token in each load"
                worst[name] = ttft.p99
                rows.append(
                    (
                        track,
                        name,
                        f"{ttft.p50:,.2f} s",
                        f"{ttft.p99:,.2f} s",
                        f"{report.replica_seconds / 3600:.2f}",
                        str(report.num_out + report.num_in),
                    )
                )
            ratios.append(worst["yours"] / worst["ours"])
            differences.look(track, told, guests, partial(_record, config, requests))
    says = f"TTFT p99, yours over ours, the worst of {len(ratios)} loads; less is better"
    columns = ("load", "scaler", "TTFT p50", "TTFT p99", "replica hours", "changes")
    return differences.race(columns, rows, max(ratios), says, "TTFT p99")


def _record(config: AutoscalerConfig, requests: list[SimRequest], guest: Guest, path: Path) -> None:
    fleet(Learner(guest).new("Scaler", **settings_of(config)), config, requests, path)

"""Checks of the lab autoscaler: single rules, random looks, a simulated fleet."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from engine.sim.autoscaler import AutoscalerConfig
from engine.sim.fleet import Fleet, FleetReport
from engine.sim.router import LeastLoaded
from engine.sim.run import make_engine
from engine.sim.scaling_policies import Asymmetric
from engine.sim.workload import SimRequest
from lessons.course.checking import Failed, Learner, check, refused, run_fewest, smallest
from lessons.labs.recording import recorded_engine
from lessons.labs.serving import h100

LAB = "autoscaler"
TIMES = {"sustain_out": 30.0, "sustain_in": 60.0, "cooldown_out": 120.0, "cooldown_in": 600.0}
SETTINGS: dict[str, Any] = {"out_above": 4.0, "in_below": 1.0, "least": 1, "most": 4, **TIMES}
Look = tuple[float, ...]
"""(seconds since the last look, signal), and replicas that have failed (-1) or come back (1) since the last look."""
HIGH, BAND, LOW = 9.0, 2.0, 0.0


class History:
    """A second opinion that keeps every look and works each decision out from all of them."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.s = settings
        self.looks: list[tuple[float, float]] = []
        """(time, signal) since the last change, that one excluded."""
        self.changed: float | None = None

    def decide(self, now: float, signal: float, replicas: int) -> int:
        s, by = self.s, 0
        if replicas >= s["least"]:
            self.looks.append((now, signal))
            high = self._held(now, s["sustain_out"], lambda value: value > s["out_above"])
            low = self._held(now, s["sustain_in"], lambda value: value < s["in_below"])
            if high and replicas < s["most"] and self._rested(now, s["cooldown_out"]):
                by = 1
            elif low and replicas > s["least"] and self._rested(now, s["cooldown_in"]):
                by = -1
        else:
            by = 1
        if by:
            self.looks, self.changed = [], now
        return by

    def _held(self, now: float, seconds: float, holds: Any) -> bool:
        """Whether the signal has held at all looks up to now, the first of them at least so long ago."""
        unbroken = 0
        while unbroken < len(self.looks) and holds(self.looks[-1 - unbroken][1]):
            unbroken += 1
        return unbroken > 0 and now - self.looks[-unbroken][0] >= seconds

    def _rested(self, now: float, seconds: float) -> bool:
        return self.changed is None or now - self.changed >= seconds


def compare(learner: Learner, looks: Sequence[Look], replicas: int = 1, **changed: Any) -> None:
    """Give the looks to the learner's scaler and to the history, and follow the right decisions."""
    settings = SETTINGS | changed
    scaler, right = learner.new("Scaler", **settings), History(settings)
    now, said = 0.0, []
    for wait, signal, *others in looks:
        now += wait
        replicas += int(sum(others))
        said.append(f"{now:g} s: signal {signal:g}, {replicas} replicas")
        mine, yours = right.decide(now, signal, replicas), scaler.decide(now, signal, replicas)
        if yours != mine or isinstance(yours, bool):
            shown = ", ".join(f"{key} {value:g}" for key, value in settings.items())
            raise Failed(
                f"at {now:g} s decide returned {yours!r}; by the rules it is {mine}",
                example=f"{shown}; {'; '.join(said[-12:])}",
            )
        replicas += mine


def looks(*parts: tuple[float, int], every: float = 10.0) -> list[Look]:
    """Return looks of one signal after the other: (signal, how many)."""
    return [(every, signal) for signal, number in parts for _ in range(number)]


@check(LAB)
def a_spike_must_last(learner: Learner) -> None:
    """A signal above the threshold starts a replica after sustain_out seconds, counted from its first look."""
    compare(learner, looks((BAND, 2), (HIGH, 3), (BAND, 3)))
    compare(learner, looks((BAND, 2), (HIGH, 5)))
    compare(learner, looks((HIGH, 9), every=4.0))
    compare(learner, looks((HIGH, 2)), sustain_out=0.0)


@check(LAB)
def thresholds_are_strict(learner: Learner) -> None:
    """A signal at a threshold is neither above nor below."""
    compare(learner, looks((4.0, 8)))
    compare(learner, looks((1.0, 9)), replicas=3)


@check(LAB)
def one_look_in_between_starts_anew(learner: Learner) -> None:
    """A single look that is not above, or not below, begins the count anew."""
    compare(learner, looks((HIGH, 3), (BAND, 1), (HIGH, 3), (LOW, 1), (HIGH, 5)))
    compare(learner, looks((LOW, 5), (BAND, 1), (LOW, 9)), replicas=3)


@check(LAB)
def cooldowns_follow_any_change(learner: Learner) -> None:
    """After growing and after shrinking, growth waits for cooldown_out and shrinking for cooldown_in."""
    compare(learner, looks((HIGH, 40)))
    compare(learner, looks((HIGH, 5), (LOW, 70)))
    compare(learner, looks((LOW, 8), (HIGH, 20)), replicas=2)
    compare(learner, looks((LOW, 80)), replicas=4)


@check(LAB)
def a_cooldown_does_not_stop_the_count(learner: Learner) -> None:
    """A signal that stays above the threshold throughout a cooldown acts at its end."""
    compare(learner, looks((HIGH, 20)), sustain_out=60.0)


@check(LAB)
def a_change_starts_the_counts_anew(learner: Learner) -> None:
    """A change begins both counts anew: the next needs its own sustained signal."""
    compare(learner, looks((HIGH, 12)), cooldown_out=0.0)
    compare(learner, looks((HIGH, 4), (LOW, 14)), cooldown_in=0.0)


@check(LAB)
def the_limits_hold(learner: Learner) -> None:
    """Never more than `most` replicas, never fewer than `least`."""
    compare(learner, looks((HIGH, 6)), replicas=4)
    compare(learner, looks((LOW, 9)), replicas=1)
    compare(learner, looks((LOW, 9)), replicas=2, least=2)


@check(LAB)
def the_limits_do_not_stop_the_count(learner: Learner) -> None:
    """At `most` or `least` the counts go on: if a replica fails or comes back later, the answer follows at once."""
    compare(learner, [*looks((HIGH, 8)), (10.0, HIGH, -1.0)], replicas=4)
    compare(learner, [*looks((LOW, 9)), (10.0, LOW, 1.0)], replicas=1)
    compare(learner, [*looks((HIGH, 2)), (10.0, HIGH, -1.0), *looks((HIGH, 3))], replicas=4)


@check(LAB)
def too_few_replicas_are_replaced_at_once(learner: Learner) -> None:
    """Below `least` the answer is 1 at every look; it counts as a change."""
    compare(learner, looks((LOW, 3), (HIGH, 16)), replicas=0, least=2)


@check(LAB)
def wrong_settings_are_refused(learner: Learner) -> None:
    """Thresholds that cross, limits that cross and negative times raise ValueError."""
    wrong: list[dict[str, Any]] = [{"in_below": 4.0}, {"in_below": 5.0}, {"least": 0}, {"least": 5}]
    wrong += [{name: -1.0} for name in TIMES]
    for changed in wrong:
        shown = ", ".join(f"{key}={value}" for key, value in changed.items())
        refused(f"Scaler(..., {shown})", learner.new, "Scaler", **(SETTINGS | changed))


@check(LAB)
def random_looks(learner: Learner) -> None:
    """150 random signals, looks unevenly apart: every decision is that of the rules."""
    rng = Random(8)

    def run(count: int) -> None:
        settings = {
            "sustain_out": rng.choice([0.0, 15.0, 30.0]),
            "sustain_in": rng.choice([0.0, 30.0]),
            "cooldown_out": rng.choice([0.0, 40.0]),
            "cooldown_in": rng.choice([0.0, 40.0, 120.0]),
        }
        replicas, signal, some = rng.randint(1, 4), BAND, []
        for _ in range(count):
            signal = rng.choice([HIGH, BAND, LOW, 4.0, 1.0]) if rng.random() < 0.35 else signal
            some.append((rng.choice([2.5, 10.0, 10.0, 25.0]), signal))
        run_fewest(some, lambda few: compare(learner, few, replicas, **settings))

    smallest([3 + number // 6 for number in range(150)], run)


# -- a simulated fleet


class LabScaler:
    """The learner's scaler, or another, where the fleet has its own."""

    overload_seconds = 0.0

    def __init__(self, config: AutoscalerConfig, scaler: Any) -> None:
        self.config, self.scaler = config, scaler
        self.told: list[str] = []

    def decide(self, now: float, signal: float, replicas: int) -> int:
        by = self.scaler.decide(now, signal, replicas)
        if by not in (-1, 0, 1) or isinstance(by, bool):
            raise Failed(f"decide returned {by!r}; it must be 1, -1 or 0")
        if by:
            self.told.append(f"{by:+d} at {now:g} s (signal {signal:.1f}, {replicas} replicas)")
        return int(by)


def settings_of(config: AutoscalerConfig) -> dict[str, Any]:
    """Return the arguments of a Scaler for the settings of a fleet."""
    both = {name: getattr(config, name) for name in ("out_above", "in_below", *TIMES)}
    return both | {"least": config.min_replicas, "most": config.max_replicas}


def fleet(
    scaler: Any, config: AutoscalerConfig, requests: Sequence[SimRequest], path: Path | None = None
) -> tuple[FleetReport, list[str]]:
    """Serve requests on replicas of Llama-3 8B in virtual time; return the report and what was decided.

    path: where to record a trace of the first replica.
    """
    served = Fleet(partial(make_engine, h100(8), num_blocks=2000), config.min_replicas, LeastLoaded(), config)
    adapter = LabScaler(config, scaler)
    assert isinstance(served.policy, Asymmetric)
    served.policy.scaler = adapter  # type: ignore[assignment]
    with recorded_engine(path, served.replicas[0].engine):
        return served.run(requests), adapter.told


CONFIG = AutoscalerConfig(
    "load",
    12.0,
    4.0,
    max_replicas=4,
    sustain_out=20.0,
    sustain_in=40.0,
    cooldown_out=40.0,
    cooldown_in=90.0,
    cold_start=30.0,
)


def wave(
    phases: Sequence[tuple[float, float]], prompt: tuple[int, int], output: tuple[int, int], seed: int = 0
) -> list[SimRequest]:
    """Return requests of a load in phases: (seconds, requests per second)."""
    rng, now, end = Random(f"wave-{seed}"), 0.0, 0.0
    found: list[SimRequest] = []
    for seconds, rate in phases:
        end += seconds
        while (now := now + rng.expovariate(rate)) < end:
            found.append(SimRequest(len(found), now, rng.randint(*prompt), rng.randint(*output)))
        now = end
    return found


@check(LAB)
def a_fleet_scales_by_it(learner: Learner) -> None:
    """A fleet under a load that rises and falls starts and drains replicas at the moments of the rules."""
    requests = wave([(40, 2), (120, 11), (200, 2)], (600, 1400), (60, 160))
    _, mine = fleet(History(settings_of(CONFIG)), CONFIG, requests)
    _, yours = fleet(learner.new("Scaler", **settings_of(CONFIG)), CONFIG, requests)
    for right, said in zip([*mine, "no change"], [*yours, "no change"], strict=False):
        if right != said:
            raise Failed(
                f"the fleet changed {said}; by the rules it changes {right}", example=str(settings_of(CONFIG))
            )

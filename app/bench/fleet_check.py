"""A simulated fleet against a live one: the same requests, goodput and the slowest percent.

    fleet of processes ---> one request at a time: HTTP path, rest of a step      (app/bench/fleet_model.py)
                       ---> each scenario, some times: live by the open-loop client, then simulated; medians of both

A paced replica computes a small model at a given pace, as if each had a device of its own; an unpaced one computes a
shape with random weights whose step takes about 10 ms on the cores that all share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from app.bench.comparison import Figure
from app.bench.comparison import as_json as figure_json
from app.bench.fleet_model import MODELS, GatewayRouter, Model
from app.bench.live_fleet import LiveFleet, live_fleet
from app.bench.timing import Tell, partial_results
from engine.server.load_client import Objective, Sent
from engine.sim.shared_cores import Change, Slowdown
from engine.sim.workload import Lengths, SimRequest, Workload
from prep_common.percentile import percentile

GOOD = {True: Objective(ttft=0.2, e2e=0.6), False: Objective(ttft=0.3, e2e=0.75)}
"""Limits of a good request, by whether the fleet is paced: most requests meet them, and some do not."""
SHORT, LONG = Lengths(24, 72), Lengths(96, 160)
ROUNDS = 3


@dataclass(frozen=True)
class Scenario:
    """Traffic on a fleet. `scale`: seconds after the start, and the replicas from then on."""

    name: str
    policy: str
    replicas: int
    rate: float
    prompt: Lengths = SHORT
    output: Lengths = Lengths(8, 24)
    num_prefixes: int = 0
    prefix_len: int = 0
    scale: tuple[float, int] | None = None
    is_paced: bool = True

    def requests(self, seconds: float, number: int, seed: int) -> list[SimRequest]:
        """Return its requests. `number` keeps the prompts of two loads apart, so that caches do not know them."""
        work = Workload(
            round(self.rate * seconds), self.rate, self.prompt, self.output,
            num_prefixes=self.num_prefixes, prefix_len=self.prefix_len, seed=seed,
        )  # fmt: skip
        first = 1000 * (number + 1)
        return [
            replace(
                request,
                index=request.index + first,
                prefix_id=request.prefix_id + first if request.prefix_id >= 0 else -1,
            )
            for request in work
        ]


ROUND_ROBIN, AFFINITY = "round-robin", "prefix-affinity"
SCENARIOS = (
    Scenario("three", ROUND_ROBIN, 3, 14.0),
    Scenario("one, then two", ROUND_ROBIN, 1, 6.0, scale=(1.0, 2)),
    Scenario("three, prefixes", AFFINITY, 3, 12.0, LONG, num_prefixes=6, prefix_len=80),
    Scenario("two, prefixes", AFFINITY, 2, 8.0, LONG, num_prefixes=4, prefix_len=80),
    Scenario("one, prefixes", AFFINITY, 1, 4.0, LONG, num_prefixes=3, prefix_len=80),
    Scenario("two, unpaced", ROUND_ROBIN, 2, 5.0, is_paced=False),
    Scenario("one, unpaced", ROUND_ROBIN, 1, 4.0, is_paced=False),
    Scenario("two, long prompts, unpaced", AFFINITY, 2, 3.0, LONG, is_paced=False),
)
"""Replicas descend within a fleet, which has one policy and one pace: only the scale event starts one."""


@dataclass(frozen=True)
class Figures:
    """Results of one side in one round. Seconds; goodput in requests per second."""

    goodput: float
    ttft_p99: float
    e2e_p99: float
    num_failed: int = 0


COMPARED = ("goodput", "ttft_p99", "e2e_p99")


@dataclass
class Outcome:
    """Rounds of one scenario."""

    scenario: str
    num_requests: int
    live: list[Figures] = field(default_factory=list)
    simulated: list[Figures] = field(default_factory=list)
    slowdown: list[Slowdown] = field(default_factory=list)
    """Measured slowdowns of the last round; empty if paced."""
    other_cores: list[float] = field(default_factory=list)
    """Cores that other programs used, by round."""

    @property
    def figures(self) -> list[Figure]:
        """Both sides of each compared figure, by round."""
        return [
            Figure(
                name,
                [getattr(row, name) for row in self.live],
                [getattr(row, name) for row in self.simulated],
            )
            for name in COMPARED
        ]


@dataclass
class FleetCheck:
    """Results of every scenario on both sides."""

    http_s: dict[str, float] = field(default_factory=dict)
    """Client to engine and back, of the first token, by fleet."""
    outcomes: list[Outcome] = field(default_factory=list)
    interrupted: bool = False


def check(tell: Tell, names: Sequence[str] = (), *, seconds: float = 8.0, rounds: int = ROUNDS) -> FleetCheck:
    """Run scenarios live and simulated; by default all."""
    chosen = [scenario for scenario in SCENARIOS if not names or scenario.name in names]
    report = FleetCheck()
    torch.set_num_threads(1)  # as the replicas
    plain: dict[bool, Model] = {}
    with partial_results(report):
        for is_paced, policy in dict.fromkeys((scenario.is_paced, scenario.policy) for scenario in chosen):
            mine = [
                scenario for scenario in chosen if (scenario.is_paced, scenario.policy) == (is_paced, policy)
            ]
            if is_paced not in plain:
                tell("calibrating")
                plain[is_paced] = MODELS[is_paced]()
            name = f"{policy}, {'paced' if is_paced else 'unpaced'}"
            tell(f"starting a fleet: {name}")
            with live_fleet(policy, max(scenario.replicas for scenario in mine), is_paced=is_paced) as fleet:
                model = plain[is_paced].calibrated(fleet)
                report.http_s[name] = model.http_s
                for scenario in mine:
                    report.outcomes.append(outcome := Outcome(scenario.name, round(scenario.rate * seconds)))
                    for number in range(rounds):
                        tell(f"{scenario.name}: round {number + 1} of {rounds}, {seconds:g} s")
                        _add_round(outcome, fleet, model, scenario, seconds)
    report.outcomes = [kept for kept in report.outcomes if kept.simulated]
    return report


def _add_round(outcome: Outcome, fleet: LiveFleet, model: Model, scenario: Scenario, seconds: float) -> None:
    """Run one scenario live, between two calibrations of unpaced replicas, then simulated."""
    seed = SCENARIOS.index(scenario)
    requests = scenario.requests(seconds, seed + len(SCENARIOS) * len(outcome.live), seed)
    fleet.scale(scenario.replicas)
    before = model.slowdowns(fleet)
    known = fleet.status()
    so_far = [replica["requests"] for replica in known["replicas"]]
    answers = fleet.send(requests, scenario.scale)
    if scenario.scale:
        fleet.wait(scenario.scale[1])
    slowed = model.slowed(before, model.slowdowns(fleet))
    start_s = float(fleet.status()["replicas"][-1]["start_s"])
    changes = [Change(*scenario.scale, start_s=start_s)] if scenario.scale else []
    router = GatewayRouter(scenario.policy, so_far, known["requests"])
    answered = slowed.answers(requests, scenario.replicas, router, changes)
    outcome.live.append(figures(answers.sent, GOOD[scenario.is_paced]))
    outcome.simulated.append(figures(answered, GOOD[scenario.is_paced]))
    outcome.slowdown = [] if scenario.is_paced else list(slowed.slowdown)
    outcome.other_cores.append(answers.other_cores)


def figures(sent: Sequence[Sent], objective: Objective) -> Figures:
    """Return the figures of the answers."""
    whole = [answer for answer in sent if not answer.error]
    good = sum(objective.is_met(answer) for answer in whole)
    ttft_p99, e2e_p99 = (
        percentile(sorted(getattr(answer, name) for answer in whole), 99) for name in ("ttft", "e2e")
    )
    return Figures(good / max(answer.last for answer in whole), ttft_p99, e2e_p99, len(sent) - len(whole))


def as_json(report: FleetCheck) -> dict[str, Any]:
    """Return the report with its errors."""
    outcomes = [
        {**asdict(outcome), "figures": [figure_json(figure) for figure in outcome.figures]}
        for outcome in report.outcomes
    ]
    return {**asdict(report), "outcomes": outcomes}

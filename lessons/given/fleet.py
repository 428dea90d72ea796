"""A brief, a plan, and the simulator that judges it: lesson 16.

judge(Plan("h100", replicas=2), BRIEF)      -> Verdict: TTFT, TPOT, price per hour, met or not
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.sim.fleet import Fleet
from engine.sim.memory import Deployment, make_deployment
from engine.sim.report import RunReport
from engine.sim.router import LeastLoaded
from engine.sim.run import make_engine
from engine.sim.workload import Lengths, Workload

PRICES = {"l4": 0.80, "a100-80": 2.20, "h100": 3.60, "h200": 4.40}
"""Dollars per GPU and hour: assumptions to calculate with. Replace them by your provider's."""


@dataclass(frozen=True)
class Brief:
    """Requirements of a service. Prompts and answers vary by half around their means."""

    rate: float
    """Requests per second, mean."""
    prompt: int
    output: int
    ttft_p99: float
    """Seconds."""
    tpot_p99: float
    dollars_per_hour: float
    cv: float = 1.0
    """Standard deviation of the gaps between arrivals over their mean: 1 is Poisson, more is bursty."""


@dataclass(frozen=True)
class Plan:
    """Deployment that serves it: Llama-3.1 8B on `replicas` replicas of `tp` GPUs each."""

    gpu: str
    replicas: int
    tp: int = 1
    max_num_seqs: int = 64
    dtype: str = "bfloat16"

    @property
    def num_gpus(self) -> int:
        return self.replicas * self.tp

    @property
    def dollars_per_hour(self) -> float:
        return PRICES[self.gpu] * self.num_gpus

    def deployment(self) -> Deployment:
        return make_deployment(
            model="llama-3.1-8b",
            gpu=self.gpu,
            tp=self.tp,
            dtype=self.dtype,
            max_model_len=4096,
            max_num_seqs=self.max_num_seqs,
        )


@dataclass(frozen=True)
class Verdict:
    """Seconds at the 99th percentile, output tokens per second of the fleet, and whether the brief is met."""

    ttft_p99: float
    tpot_p99: float
    tokens_per_s: float
    dollars_per_hour: float
    is_in_time: bool
    is_in_budget: bool

    def __str__(self) -> str:
        times = f"TTFT p99 {1e3 * self.ttft_p99:.0f} ms, TPOT p99 {1e3 * self.tpot_p99:.1f} ms"
        words = [
            "in time" if self.is_in_time else "LATE",
            "in budget" if self.is_in_budget else "TOO EXPENSIVE",
        ]
        return f"{times}, {self.dollars_per_hour:.2f} $/h: {', '.join(words)}"


def simulate(plan: Plan, brief: Brief, seconds: float = 30.0, seed: int = 1) -> RunReport:
    """Serve the brief's traffic for some seconds of virtual time, without shared prefixes."""
    prompt, output = (Lengths(mean // 2, mean + mean // 2) for mean in (brief.prompt, brief.output))
    count = max(20, round(brief.rate * seconds))
    load = Workload(count, brief.rate, prompt, output, arrivals="gamma", cv=brief.cv, seed=seed)
    deployment = plan.deployment()
    fleet = Fleet(lambda: make_engine(deployment, enable_prefix_caching=False), plan.replicas, LeastLoaded())
    return fleet.run(load).run


def judge(plan: Plan, brief: Brief, seconds: float = 30.0, seed: int = 1) -> Verdict:
    """Run the plan and compare it with the brief."""
    run = simulate(plan, brief, seconds, seed)
    assert run.ttft is not None and run.tpot is not None
    return Verdict(
        run.ttft.p99,
        run.tpot.p99,
        run.output_tokens_per_s,
        plan.dollars_per_hour,
        run.ttft.p99 <= brief.ttft_p99 and run.tpot.p99 <= brief.tpot_p99,
        plan.dollars_per_hour <= brief.dollars_per_hour,
    )

"""Twelve workloads of `prep sim check`: what a scheduler meets, each small enough for seconds on a CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from app.bench.calibrate import LARGE_PARAMS, LOOKUP, LORA, MAX_LORAS
from engine.config import ConfigError
from engine.sim.models import get_model
from engine.sim.workload import Lengths, SimRequest, Workload

ALL_AT_ONCE = float("inf")
APART = 0.0
LARGE_SHARE = 6
"""A large model serves a sixth of the requests."""


@dataclass(frozen=True)
class CheckWorkload:
    """Requests and engine settings. `load`: arrival rate as a share of the simulated capacity; 0: one at a time."""

    name: str
    prompt: Lengths
    output: Lengths
    num_requests: int
    load: float = 0.6
    num_prefixes: int = 0
    prefix_len: int = 0
    burst: int = 1  # requests that arrive together
    num_priorities: int = 1
    num_adapters: int = 0
    engine: Mapping[str, Any] = field(default_factory=dict)

    def sized(self, model: str) -> int:
        """Return the number of requests for a model."""
        is_large = get_model(model).num_params > LARGE_PARAMS
        return max(4, self.num_requests // LARGE_SHARE) if is_large else self.num_requests

    def requests(self, count: int, rate: float) -> list[SimRequest]:
        """Return requests that arrive at `rate` per second: exponential gaps between bursts, or equal gaps if apart."""
        drawn = Workload(
            count, rate, self.prompt, self.output, "poisson" if self.load else "constant",
            num_prefixes=self.num_prefixes, prefix_len=self.prefix_len,
        )  # fmt: skip
        rng, requests = Random(self.name), list(drawn)
        for request in requests:
            request.arrival = requests[request.index // self.burst * self.burst].arrival
            request.priority = rng.randrange(self.num_priorities)
            request.adapter = str(rng.randrange(self.num_adapters)) if self.num_adapters else None
        return requests


SHORT, MIDDLE = Lengths(16, 48), Lengths(32, 256)
WORKLOADS = (
    CheckWorkload("one at a time", Lengths(64, 128), Lengths(48, 64), 8, APART),
    CheckWorkload("mixed lengths", MIDDLE, SHORT, 100),
    CheckWorkload("prefill-heavy", Lengths(300, 700), Lengths(2, 6), 40),
    CheckWorkload("decode-heavy", Lengths(8, 32), Lengths(64, 160), 64, ALL_AT_ONCE),
    CheckWorkload("shared prefixes", Lengths(160, 240), SHORT, 100, num_prefixes=4, prefix_len=128),
    CheckWorkload("near capacity", MIDDLE, SHORT, 100, 0.95),
    CheckWorkload(
        "preemption", MIDDLE, Lengths(48, 96), 60, ALL_AT_ONCE, engine={"num_gpu_blocks_override": 160}
    ),
    CheckWorkload("chunked prefill", Lengths(200, 500), SHORT, 40, engine={"max_num_batched_tokens": 64}),
    CheckWorkload("n-gram drafts", Lengths(32, 96), Lengths(48, 96), 50, engine=LOOKUP),
    CheckWorkload("adapters", MIDDLE, SHORT, 80, num_adapters=MAX_LORAS, engine=LORA),
    CheckWorkload(
        "priorities", MIDDLE, SHORT, 100, 0.95, num_priorities=3, engine={"scheduling_policy": "priority"}
    ),
    CheckWorkload("bursts", MIDDLE, SHORT, 96, burst=16),
)


def chosen(names: list[str]) -> list[CheckWorkload]:
    """Return the workloads of these names, by default all. Raises ConfigError for an unknown one."""
    known = {workload.name: workload for workload in WORKLOADS}
    for name in names:
        if name not in known:
            raise ConfigError(f"no workload {name!r}; there are: {'; '.join(known)}")
    return [known[name] for name in names] or list(WORKLOADS)

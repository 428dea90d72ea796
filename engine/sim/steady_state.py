"""The steady-state load of one replica at a rate of requests.

A step computes a token for each running request and the prompts that arrived during the step before:

    T' = D + K p       K: arrivals during a step of length T, Poisson with mean rate x T
                       D: the decode step of the running requests;  p: what one more prompt adds

So the mean is T = D / (1 - rate p), the variance p^2 rate T / (1 - (rate p)^2), and a request that arrives waits for
the rest of a step (a long one more likely than a short one) before the step with its own prompt begins. Running
requests are counted by Little's law, N = rate x time in the system, and D grows with N: a fixed point.

At an empty replica a request does not wait. With Poisson arrivals and no limit on N it is empty for a share e^-N of the
time (M/G/infinity).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from engine.sim.calibration import calibrated_rates
from engine.sim.cost import CostModel, Rates, StepLoad, pairs_of
from engine.sim.memory import Deployment


class Traffic(Protocol):
    """Mean request of a service, and the deployment of one replica."""

    @property
    def deployment(self) -> Deployment: ...
    @property
    def prompt(self) -> int: ...
    @property
    def output(self) -> int: ...
    @property
    def hit_tokens(self) -> int:
        """Prompt tokens that are found in the prefix cache."""
        ...


@dataclass(frozen=True)
class SteadyState:
    """Means over time of one replica, in seconds."""

    rate: float
    """Requests per second."""
    decode_step: float
    """D: a decode step of the running requests."""
    prompt_cost: float
    """p: what a prompt adds to a step."""
    step: float
    """T: the mean step while any request runs, the time per output token."""
    ttft: float
    wait: float
    """The part of `ttft` before the step with the prompt begins."""
    running: float
    """N: Little's law."""
    busy: float
    """Share of the time in steps."""
    is_stable: bool
    """Whether the replica keeps up. If not, the queue grows without bound, and the other numbers are those of a full
    one."""


class Replica:
    """Costs of the requests on one replica."""

    def __init__(self, traffic: Traffic, batch_limit: float, rates: Rates | None = None) -> None:
        self.traffic = traffic
        self.batch_limit = batch_limit
        """Requests that can run at once."""
        self.cost = CostModel(traffic.deployment, rates or calibrated_rates(traffic.deployment))
        model = traffic.deployment.model
        self.held = model.kv_tokens_held(traffic.prompt + traffic.output // 2)
        """Mean context of a decoding request, in tokens."""

    def decode_step(self, batch: float) -> float:
        """Seconds of a step that decodes `batch` requests."""
        return self.cost.seconds(StepLoad(batch, batch, batch, batch * self.held))  # type: ignore[arg-type]

    def prompt_cost(self, batch: float) -> float:
        """Seconds that one prompt adds to steps of `batch` decodes, summed over its steps."""
        return self.num_chunks(batch) * self._chunk_cost(batch)

    def num_chunks(self, batch: float) -> int:
        """Number of steps of one prompt, given the budget left by the decodes."""
        budget = max(1.0, self.traffic.deployment.max_num_batched_tokens - batch)
        return math.ceil(self.computed / budget)

    @property
    def computed(self) -> int:
        """Prompt tokens that are not in the prefix cache."""
        return self.traffic.prompt - self.traffic.hit_tokens

    def _chunk_cost(self, batch: float) -> float:
        """Seconds of the average chunk: a step with a chunk from the prompt's middle, minus a step of the decodes
        alone."""
        tokens = self.computed / self.num_chunks(batch)
        pairs = pairs_of(self.traffic.hit_tokens, self.computed, self.cost.window) / self.num_chunks(batch)
        context = self.traffic.prompt if self.num_chunks(batch) == 1 else self.traffic.prompt / 2
        sampled = batch + 1 / self.num_chunks(batch)
        load = StepLoad(batch + 1, batch + tokens, sampled, batch * self.held, pairs, context)  # type: ignore[arg-type]
        return self.cost.seconds(load) - (self.decode_step(batch) if batch else 0.0)

    def most_requests_per_s(self) -> float:
        """The maximum rate, with `batch_limit` requests all the time: each takes the time of its prompt and its share
        of as many decode steps as it has tokens."""
        batch = self.batch_limit
        decodes = (self.traffic.output - 1) * self.decode_step(batch) / batch
        return 1 / (self.prompt_cost(batch) + decodes)

    def at(self, rate: float) -> SteadyState:
        """The steady state at `rate` requests per second."""
        if rate >= self.most_requests_per_s():
            return self._saturated(rate)
        running = 0.0
        for _ in range(500):
            state = self._with(rate, running)
            if abs(state.running - running) < 1e-6 * (1 + running):
                break
            running += 0.5 * (min(state.running, self.batch_limit) - running)
        return state if state.running <= self.batch_limit else self._saturated(rate)

    def _with(self, rate: float, others: float) -> SteadyState:
        """The steady state if a request finds `others` running on average."""
        batch = min(others + 1, self.batch_limit)
        decode, prompt = self.decode_step(batch), self.prompt_cost(batch)
        share = min(rate * prompt, 0.999)
        step = decode / (1 - share)
        variance = prompt**2 * rate * step / (1 - share**2)
        biased = step + variance / step  # the step that an arrival falls into: E[T^2] / E[T]
        first = decode * self.num_chunks(batch) + prompt * (1 + rate * biased)
        empty = math.exp(-others)
        wait = (1 - empty) * biased / 2
        first = (1 - empty) * first + empty * self.prompt_cost(0)
        running = rate * (first + (self.traffic.output - 1) * step)
        return SteadyState(
            rate=rate,
            decode_step=decode,
            prompt_cost=prompt,
            step=step,
            ttft=wait + first,
            wait=wait,
            running=running,
            busy=1 - math.exp(-running),
            is_stable=True,
        )

    def _saturated(self, rate: float) -> SteadyState:
        """The steady state of an overloaded replica: it completes requests at its maximum rate, and its queue grows."""
        batch = self.batch_limit
        time_per_token = batch / self.most_requests_per_s() / self.traffic.output
        return SteadyState(
            rate=rate,
            decode_step=self.decode_step(batch),
            prompt_cost=self.prompt_cost(batch),
            step=time_per_token,
            ttft=math.inf,
            wait=math.inf,
            running=batch,
            busy=1.0,
            is_stable=False,
        )

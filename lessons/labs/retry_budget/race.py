"""Race of the lab retry-budget: a spike, or a lost replica, on simulated H100s. Virtual time: exact."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from engine.sim.report import percentiles
from engine.sim.workload import SimRequest
from lessons.course.checking import Learner
from lessons.labs.racing import Differences, Race, all_served, racer
from lessons.labs.retry_budget.checks import Clients, draws, serve
from prep_common.sandbox import Guest

Track = tuple[str, list[SimRequest], dict[str, Any]]
"""Name, requests, arguments of `serve`."""


class NoRetries:
    """vLLM's rule: its server never sends a request again; retries are left to the proxy in front."""

    def request(self) -> None:
        pass

    def retry(self, *failure: Any) -> float | None:
        return None


class OpenAIClient(NoRetries):
    """OpenAI's Python client: 2 retries, 0.5 s doubled up to 8 s, less up to a quarter of it, without a budget."""

    def __init__(self, random: Callable[[], float]) -> None:
        self.random = random

    def retry(self, *failure: Any) -> float | None:
        attempt, after = failure[2], failure[6]
        if attempt > 2:
            return None
        if after is not None:
            return float(after)
        return float(min(8.0, 0.5 * 2.0 ** (attempt - 1)) * (1 - 0.25 * self.random()))


class AtOnce(NoRetries):
    """The naive policy: up to 3 retries, without a wait."""

    def retry(self, *failure: Any) -> float | None:
        return 0.0 if failure[2] <= 3 else None


def tracks(seed: int) -> Iterator[Track]:
    """Yield name, requests and conditions: three fixed workloads, and one that the seed draws."""
    rng = Random(seed)
    yield "chat", _requests("chat", (200, 800), (80, 200), 5.8, spike=24.7), {"timeout_s": 2.0}
    bounded = {"timeout_s": 4.0, "max_waiting": 16}
    yield "long documents", _requests("long documents", (4000, 7000), (30, 90), 3.8, spike=16.2), bounded
    failing = {"timeout_s": 1.0, "replicas": 2, "down_at": 12.0}
    yield "agents", _requests("agents", (1200, 2000), (20, 60), 10.0), failing
    low, spike = rng.randrange(100, 600), rng.uniform(15, 30)
    yield f"seed {seed}", _requests(f"{seed}", (low, 2 * low), (60, 180), 6.0, spike), {"timeout_s": 2.0}


def _requests(
    name: str, prompt: tuple[int, int], output: tuple[int, int], calm: float, spike: float = 0.0
) -> list[SimRequest]:
    """Return 300 requests at `calm` per second; with a spike, numbers 75 to 134 come at `spike` per second."""
    rng = Random(f"retry-{name}")
    when, requests = 0.0, []
    for index in range(300):
        when += rng.expovariate(spike if spike and 75 <= index < 135 else calm)
        requests.append(SimRequest(index, when, rng.randint(*prompt), rng.randint(*output)))
    return requests


def race(yours: str, ours: str, seed: int = 0) -> Race:
    rows, ratios, differences = [], [], Differences("retry-budget", "request")
    with racer(yours) as your_guest, racer(ours) as our_guest:
        guests = your_guest, our_guest
        for track, requests, conditions in tracks(seed):
            runs: dict[str, Clients] = {}
            for name in ("yours", "ours", "no retries (vLLM)", "OpenAI client", "3 at once"):
                random = draws(seed)
                guest = Learner(your_guest if name == "yours" else our_guest)
                baselines = {"OpenAI client": OpenAIClient(random), "3 at once": AtOnce()}
                policy: Any = baselines.get(name, NoRetries())
                if name in ("yours", "ours"):
                    policy = guest.new("RetryPolicy", guest.callback(random))
                runs[name] = serve(policy, requests, **conditions)
            lost = {}
            for name, run in runs.items():
                answered = [each for each in run.users if each.answer is not None]
                all_served(name, (each.answer for each in answered if each.answer))
                waits = percentiles(
                    [each.answer.first_token - each.request.arrival for each in answered if each.answer]
                )
                assert waits is not None
                lost[name] = len(run.users) - len(answered)
                attempts = sum(each.num_attempts for each in run.users)
                rows.append(
                    (
                        track,
                        name,
                        f"{len(answered) / len(run.users):.1%}",
                        f"{attempts / len(run.users):.2f}",
                        f"{len(run.late) / attempts:.1%}",
                        f"{waits.p99:,.2f} s",
                    )
                )
            ratios.append((1 + lost["yours"]) / (1 + lost["ours"]))
            told = {name: [_said(each) for each in runs[name].users] for name in ("yours", "ours")}
            differences.look(track, told, guests, partial(_record, requests, conditions, seed))
    says = (
        f"requests without an answer, yours over ours, the worst of {len(ratios)} workloads; less is better"
    )
    columns = ("workload", "policy", "answered", "attempts per request", "computed unread", "first token p99")
    return differences.race(columns, rows, max(ratios), says, "answered")


def _record(
    requests: list[SimRequest], conditions: dict[str, Any], seed: int, guest: Guest, path: Path
) -> None:
    learner = Learner(guest)
    serve(learner.new("RetryPolicy", learner.callback(draws(seed))), requests, **conditions, path=path)


def _said(user: Any) -> str:
    end = (
        "gave up"
        if user.answer is None
        else f"answered after {user.answer.first_token - user.request.arrival:.3f} s"
    )
    return f"{user.num_attempts} attempts, {end}"

"""E22: the same engine under two load generators: a rate that does not care, and users who wait for their answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Annotated

from pydantic import Field

from engine.sim.engine import SimEngine
from engine.sim.memory import Deployment
from engine.sim.report import RunReport, summarise
from engine.sim.run import make_engine, simulate
from engine.sim.workload import SimRequest, Workload
from quizzes.experiments import Context, experiment
from quizzes.experiments.scheduling._cluster import Gpu, Model, deployment, lengths


@dataclass(frozen=True)
class Loads:
    """Virtual time. Closed: by number of users. Open: by rate."""

    closed_requests_per_s: Annotated[list[float], "requests/s"]
    closed_ttft_p99_ms: Annotated[list[float], "ms"]
    closed_e2e_mean_ms: Annotated[list[float], "ms"]
    closed_in_system: Annotated[list[float], "requests"]
    """Throughput x latency: with no thinking time, the number of users."""
    open_requests_per_s: Annotated[list[float], "requests/s"]
    open_ttft_p99_ms: Annotated[list[float], "ms"]
    open_e2e_mean_ms: Annotated[list[float], "ms"]
    open_peak_waiting: Annotated[list[int], "requests"]


@experiment("E22", "E16")
def open_vs_closed(
    ctx: Context,
    *,
    users: Annotated[list[Annotated[int, Field(ge=1, le=512)]], Field(min_length=1, max_length=5)] = (16, 64),
    rates: Annotated[list[Annotated[float, Field(gt=0, le=500)]], Field(min_length=1, max_length=5)] = (
        10.0,
        60.0,
    ),
    requests: Annotated[int, Field(ge=1, le=400)] = 300,
    prompt: str = "500",
    output: str = "100-200",
    max_num_seqs: Annotated[int, Field(ge=1, le=512)] = 64,
    model: Model = "llama-3.1-8b",
    gpu: Gpu = "h100",
    seed: Annotated[int, Field(ge=0, le=1000)] = 0,
) -> Loads:
    """Closed loop: each of `users` sends its next request when the answer has come. Open loop: Poisson at `rates`.

    A closed loop slows down with the server, so its queue can never exceed the number of users; an open loop goes on.
    """
    drawn = (lengths("prompt", prompt, 20_000), lengths("output", output, 1000))
    replica = deployment(model, gpu, max_num_seqs=max_num_seqs)
    closed = [_closed(count, Workload(requests, 1.0, *drawn, seed=seed), replica) for count in users]
    opened = [simulate(make_engine(replica), Workload(requests, rate, *drawn, seed=seed)) for rate in rates]
    return Loads(
        [run.requests_per_s for run in closed],
        [1000 * run.ttft.p99 for run in closed],
        [1000 * run.e2e.mean for run in closed],
        [run.requests_per_s * run.e2e.mean for run in closed],
        [run.requests_per_s for run in opened],
        [1000 * run.ttft.p99 for run in opened],
        [1000 * run.e2e.mean for run in opened],
        [run.peak_waiting for run in opened],
    )


def _closed(users: int, load: Workload, replica: Deployment) -> RunReport:
    """Looks for answers at every step end: who is answered sends again at that moment."""
    engine, requests = make_engine(replica), iter(load)
    ends = [0.0]
    engine.on_step = lambda _, load, seconds: ends.append(engine.now + seconds)
    engine.fast_forward = False
    _send(engine, requests, users)
    while engine.num_unfinished:
        done = engine.run_until(engine.now + 1e-9)  # begins a step, which ends after that
        done += engine.run_until(ends[-1])
        _send(engine, requests, len(done))
    return summarise([engine.recorder], engine.scheduler.kv.pool.num_usable, engine.rejected)


def _send(engine: SimEngine, requests: Iterator[SimRequest], count: int) -> None:
    """The next `count` requests arrive now."""
    for request in islice(requests, count):
        request.arrival = engine.now
        engine.add(request, engine.now)

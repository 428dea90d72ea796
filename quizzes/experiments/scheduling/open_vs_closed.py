"""E22: the same engine under two load generators: a rate that does not care, and users who wait for their answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment
from quizzes.experiments.scheduling._cluster import Gpu, Model, deployment


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
    closed = [_closed(count, requests, prompt, output, max_num_seqs, model, gpu, seed) for count in users]
    opened = [_open(rate, requests, prompt, output, max_num_seqs, model, gpu, seed) for rate in rates]
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


def _open(rate, requests, prompt, output, max_num_seqs, model, gpu, seed):
    from engine.sim.run import make_engine, simulate
    from engine.sim.workload import Lengths, Workload

    load = Workload(requests, rate, Lengths.parse(prompt), Lengths.parse(output), seed=seed)
    return simulate(make_engine(deployment(model, gpu, max_num_seqs=max_num_seqs)), load)


def _closed(users, requests, prompt, output, max_num_seqs, model, gpu, seed):
    """Looks for answers at every step end: who is answered sends again at that moment."""
    from engine.sim.report import summarise
    from engine.sim.run import make_engine
    from engine.sim.workload import Lengths, SimRequest, Workload

    load: Iterator[SimRequest] = iter(
        Workload(requests, 1.0, Lengths.parse(prompt), Lengths.parse(output), seed=seed)
    )
    engine = make_engine(deployment(model, gpu, max_num_seqs=max_num_seqs))
    ends = [0.0]
    engine.on_step = lambda _, load, seconds: ends.append(engine.now + seconds)
    engine.fast_forward = False
    _send(engine, load, users)
    while engine.num_unfinished:
        done = engine.run_until(engine.now + 1e-9)  # begins a step, which ends after that
        done += engine.run_until(ends[-1])
        _send(engine, load, len(done))
    return summarise([engine.recorder], engine.scheduler.kv.pool.num_usable, engine.rejected)


def _send(engine, load, count):
    """The next `count` requests arrive now."""
    for request in islice(load, count):
        request.arrival = engine.now
        engine.add(request, engine.now)

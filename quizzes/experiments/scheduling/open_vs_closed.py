from collections.abc import Iterator
from itertools import islice
from typing import Any

from engine.sim.engine import SimEngine
from engine.sim.memory import Deployment
from engine.sim.report import RunReport, summarise
from engine.sim.run import make_engine, simulate
from engine.sim.workload import SimRequest, Workload
from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.scheduling._cluster import Gpu, Model, deployment, lengths


@experiment("E22", "E16")
def open_vs_closed(
    ctx: Context,
    users: list[int] = arg([16, 64], 1, 512, count=(1, 5)),
    rates: list[float] = arg([10.0, 60.0], above=0, high=500, count=(1, 5)),
    requests: int = arg(300, 1, 400),
    prompt: str = "500",
    output: str = "100-200",
    max_num_seqs: int = arg(64, 1, 512),
    model: Model = "llama-3.1-8b",
    gpu: Gpu = "h100",
    seed: int = arg(0, 0, 1000),
) -> Result:
    """Load the same engine with an open and a closed load generator.

    Closed loop: each of `users` sends its next request when its answer has come, so the queue never exceeds the number
    of users. Open loop: Poisson arrivals at `rates`, however slow the server is.

    Returns:
        Virtual time. Closed: by number of users. Open: by rate.
        closed_requests_per_s [requests/s]
        closed_ttft_p99_ms, closed_e2e_mean_ms [ms]
        closed_in_system [requests]: Throughput x latency: with no thinking time, the number of users.
        open_requests_per_s [requests/s]
        open_ttft_p99_ms, open_e2e_mean_ms [ms]
        open_peak_waiting [requests]
    """
    drawn = (lengths("prompt", prompt, 20_000), lengths("output", output, 1000))
    replica = deployment(model, gpu, max_num_seqs=max_num_seqs)
    closed: list[Any] = [
        _closed(count, Workload(requests, 1.0, *drawn, seed=seed), replica) for count in users
    ]
    opened: list[Any] = [
        simulate(make_engine(replica), Workload(requests, rate, *drawn, seed=seed)) for rate in rates
    ]
    return Result(
        closed_requests_per_s=[run.requests_per_s for run in closed],
        closed_ttft_p99_ms=[1000 * run.ttft.p99 for run in closed],
        closed_e2e_mean_ms=[1000 * run.e2e.mean for run in closed],
        closed_in_system=[run.requests_per_s * run.e2e.mean for run in closed],
        open_requests_per_s=[run.requests_per_s for run in opened],
        open_ttft_p99_ms=[1000 * run.ttft.p99 for run in opened],
        open_e2e_mean_ms=[1000 * run.e2e.mean for run in opened],
        open_peak_waiting=[run.peak_waiting for run in opened],
    )


def _closed(users: int, load: Workload, replica: Deployment) -> RunReport:
    """Serve a closed loop: a user sends the next request at the end of the step that finished the last one."""
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
    """Let the next `count` requests arrive now."""
    for request in islice(requests, count):
        request.arrival = engine.now
        engine.add(request, engine.now)

from random import Random
from typing import Any, Literal

from engine.core.request import Request
from quizzes.experiments import Ask, BadArguments, Context, Result, arg, experiment
from quizzes.experiments.charts import POINTS, vega
from quizzes.experiments.scheduling import _policies

Policy = Literal["fcfs", "priority", "sjf", "aging", "fair"]


@experiment("E20")
def policy_lab(
    ctx: Context,
    policies: list[Policy] = arg(["fcfs", "priority", "sjf", "aging", "fair"], count=(1, 5)),
    lens: list[int] = arg([40, 3, 5, 30, 4, 6, 3, 20], 1, 500, count=(1, 120)),
    arrivals: list[int] = arg([], 0, 2000, count=(0, 120)),
    priorities: list[int] = arg([], -10, 10, count=(0, 120)),
    tenants: list[str] = arg([], count=(0, 120)),
    slots: int = arg(1, 1, 32),
    aging_weight: float = arg(1.0, 0, 100),
    prediction_error: float = arg(0.0, 0, 5),
    seed: int = arg(0, 0, 10_000),
) -> Result:
    """Run the same jobs under five policies and compare latency and starvation.

    Jobs of `lens` output tokens on `slots` decode slots; prompts of one token, no memory pressure. fcfs and priority
    are vLLM's two policies and this engine's; sjf, aging and fair (share) are sort keys on the same scheduler.
    Predicted lengths are the true ones times exp(prediction_error x standard normal). Empty arrivals: all at step 0. A
    policy decides which request is admitted next and never interrupts a running one.

    Returns:
        By policy, in the order given; within a policy by job. Latency: steps from arrival to the last token.
        policies
        mean_latency, worst_latency, mean_wait [steps]
        longest_wait [steps]: Maximum steps between arrival and admission.
        starved_job: Index of that job.
        finish_order
        latencies, waits [steps]
        steps [steps]: Steps until all jobs have finished.
        tenant_mean_latency [steps]
        best_mean: Policy with the least mean latency; the first of those that tie.
        best_worst: Policy with the least worst latency.
    """
    count = len(lens)
    arrivals, priorities = list(arrivals) or [0] * count, list(priorities) or [0] * count
    tenants = list(tenants) or ["a"] * count
    if not len(arrivals) == len(priorities) == len(tenants) == count:
        raise BadArguments("arrivals, priorities and tenants need one entry for each of lens, or none at all")
    rng = Random(f"predictions-{seed}")
    guesses = [length * pow(2.718281828, prediction_error * rng.gauss(0, 1)) for length in lens]
    asks = [
        Ask(f"{tenants[i]}/{i}", 1, lens[i], arrival=arrivals[i], priority=priorities[i])
        for i in range(count)
    ]
    runs = [_serve(ctx, policy, asks, guesses, slots, aging_weight) for policy in policies]
    waits = [[admitted - ask.arrival for ask, (admitted, _) in zip(asks, run, strict=True)] for run in runs]
    latencies = [[end + 1 - ask.arrival for ask, (_, end) in zip(asks, run, strict=True)] for run in runs]
    means = [sum(row) / count for row in latencies]
    worst = [max(row) for row in latencies]
    return Result(
        policies=list(policies),
        mean_latency=means,
        worst_latency=worst,
        mean_wait=[sum(row) / count for row in waits],
        longest_wait=[max(row) for row in waits],
        starved_job=[row.index(max(row)) for row in waits],
        finish_order=[_by_end(run) for run in runs],
        latencies=latencies,
        waits=waits,
        steps=[max(end for _, end in run) + 1 for run in runs],
        tenant_mean_latency=[_by_tenant(row, tenants) for row in latencies],
        best_mean=policies[means.index(min(means))],
        best_worst=policies[worst.index(min(worst))],
    )


def _serve(
    ctx: Context, policy: Policy, asks: list[Ask], guesses: list[float], slots: int, weight: float
) -> list[tuple[int, int]]:
    """(step of admission, step of the last token) of each job."""

    def predict(request: Request) -> float:
        return guesses[int(request.request_id.split("/")[1])]

    own = {
        "sjf": lambda: _policies.sjf(predict),
        "aging": lambda: _policies.aging(predict, weight),
        "fair": lambda: _policies.fair(predict),
    }
    settings: dict[str, Any] = {"make_scheduler": own[policy]()} if policy in own else {"policy": policy}
    engine = ctx.core(max_num_seqs=slots, traced=True, **settings)
    to_come = sorted(asks, key=lambda ask: ask.arrival)
    while to_come or engine.scheduler.has_unfinished():
        while to_come and to_come[0].arrival <= engine.num_steps:
            engine.add(to_come.pop(0))
        engine.step()
    engine.close()
    outcomes = [engine.outcomes[ask.request_id] for ask in asks]
    return [(outcome.admitted, outcome.finished) for outcome in outcomes]


def _by_end(run: list[tuple[int, int]]) -> list[int]:
    """Jobs in the order in which they end."""
    return sorted(range(len(run)), key=lambda job: (run[job][1], job))


def _by_tenant(latencies: list[int], tenants: list[str]) -> dict[str, float]:
    groups: dict[str, list[int]] = {}
    for tenant, latency in zip(tenants, latencies, strict=True):
        groups.setdefault(tenant, []).append(latency)
    return {tenant: sum(row) / len(row) for tenant, row in groups.items()}


def chart(result: Result) -> dict[str, Any]:
    """Mean against worst latency, one point per policy; bottom left is best."""
    rows = zip(result.policies, result.mean_latency, result.worst_latency, strict=True)
    return vega(
        [{"policy": name, "mean": mean, "worst": worst} for name, mean, worst in rows],
        POINTS,
        x=("mean:Q", {"title": "mean latency (steps)"}),
        y=("worst:Q", {"title": "worst latency (steps)"}),
        color="policy:N",
    )

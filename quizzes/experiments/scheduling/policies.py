"""Policies that vLLM does not ship, as sort keys on the real scheduler.

    policy      key of a request: smaller runs first
    sjf         predicted tokens
    aging       arrival + weight x predicted tokens     a job that has waited long enough beats any later one
    fair        finish tag of its tenant                tag = max(tenant's last tag, virtual time) + tokens

Keys are computed on arrival. For aging that suffices: a waiting request gains on all later arrivals at the same
pace, so the order between two requests never changes. Fair share: weighted fair queueing with unit weights (Demers et
al. 1989), for LLM serving Sheng et al. 2024 (2401.00588), section 3.
"""

from collections.abc import Callable
from random import Random
from statistics import fmean
from typing import Any, Literal, cast

from engine.core.request import Request
from engine.core.sched_output import Reason
from engine.core.scheduler import Scheduler
from quizzes.experiments import Ask, BadArguments, Context, Result, arg, experiment
from quizzes.experiments.charts import POINTS, vega
from quizzes.experiments.core_engine import Outcome, StepView

Predict = Callable[[Request], float]
"""Predicted tokens of a request, on arrival."""


def sorted_by(policy: str, predict: Predict, weight: float = 1.0) -> Callable[..., Scheduler]:
    """Return a factory of schedulers with the sort key of sjf, aging or fair.

    Aging: a token of length counts as `weight` steps of waiting. Fair: tenants take turns by tokens, however many
    requests each of them sends; the tenant of an id such as tenant/number comes first.
    """

    def make(*args: Any, **settings: Any) -> Scheduler:
        scheduler: Any = Scheduler(*args, **settings)
        last: dict[str, float] = {}
        starts: dict[str, float] = {}
        """Starts of unfinished requests; the minimum is the virtual time."""

        def fair(request: Request) -> float:
            for request_id in [name for name in starts if name not in scheduler.requests]:
                del starts[request_id]
            tenant = request.request_id.split("/")[0]
            start = max(last.get(tenant, 0.0), min(starts.values(), default=0.0))
            last[tenant] = start + predict(request)
            starts[request.request_id] = start
            return last[tenant]

        def aging(request: Request) -> float:
            return request.arrival_time + weight * predict(request)

        key = {"sjf": predict, "aging": aging, "fair": fair}[policy]
        scheduler.sort_key = lambda request, order: (0, key(request), order)
        return cast(Scheduler, scheduler)

    return make


class BypassScheduler(Scheduler):
    """First fit instead of first come: requests that fit overtake a head that lacks blocks."""

    def _schedule_waiting(self, plan: Any) -> None:
        passed: list[Request] = []
        while self.waiting and self._why_closed(plan) is None:
            request = self.waiting.pop()
            refusal = self._admit(request, plan)
            if refusal is not None:
                plan.not_scheduled.append(refusal)
                passed.append(request)
        for request in passed:
            self.waiting.push(request)


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

    Returns: By policy, in the order given; within a policy by job. Latency: steps from arrival to the last token.
        policies; mean_latency, worst_latency, mean_wait [steps]
        longest_wait [steps]: Maximum steps between arrival and admission.
        starved_job: Index of that job.
        finish_order; latencies, waits [steps]
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
    rows = zip(tenants, lens, arrivals, priorities, strict=True)
    asks = [
        Ask(f"{tenant}/{job}", 1, length, arrival=arrival, priority=priority)
        for job, (tenant, length, arrival, priority) in enumerate(rows)
    ]
    runs = [_serve(ctx, policy, asks, guesses, slots, aging_weight) for policy in policies]
    waits = [[outcome.admitted - outcome.arrival for outcome in run] for run in runs]
    latencies = [[outcome.finished + 1 - outcome.arrival for outcome in run] for run in runs]
    means, worst = [sum(row) / count for row in latencies], [max(row) for row in latencies]
    return Result(
        policies=list(policies),
        mean_latency=means,
        worst_latency=worst,
        mean_wait=[sum(row) / count for row in waits],
        longest_wait=[max(row) for row in waits],
        starved_job=[row.index(max(row)) for row in waits],
        finish_order=[sorted(range(count), key=[o.finished for o in run].__getitem__) for run in runs],
        latencies=latencies,
        waits=waits,
        steps=[max(outcome.finished for outcome in run) + 1 for run in runs],
        tenant_mean_latency=[
            {
                name: fmean(latency for latency, who in zip(row, tenants, strict=True) if who == name)
                for name in tenants
            }
            for row in latencies
        ],
        best_mean=policies[means.index(min(means))],
        best_worst=policies[worst.index(min(worst))],
    )


def _serve(
    ctx: Context, policy: Policy, asks: list[Ask], guesses: list[float], slots: int, weight: float
) -> list[Outcome]:
    settings: dict[str, Any] = {"policy": policy}
    if policy not in ("fcfs", "priority"):
        settings = {
            "make_scheduler": sorted_by(policy, lambda r: guesses[int(r.request_id.split("/")[1])], weight)
        }
    engine = ctx.core(max_num_seqs=slots, traced=True, **settings)
    to_come = sorted(asks, key=lambda ask: ask.arrival)
    while to_come or engine.scheduler.has_unfinished():
        while to_come and to_come[0].arrival <= engine.num_steps:
            engine.add(to_come.pop(0))
        engine.step()
    engine.close()
    return [engine.outcomes[ask.request_id] for ask in asks]


def policy_lab_chart(result: Result) -> dict[str, Any]:
    """Mean against worst latency, one point per policy; bottom left is best."""
    return vega(
        {"policy": result.policies, "mean": result.mean_latency, "worst": result.worst_latency},
        POINTS,
        x=("mean:Q", {"title": "mean latency (steps)"}),
        y=("worst:Q", {"title": "worst latency (steps)"}),
        color="policy:N",
    )


@experiment("E20", "E17")
def priority_arrival(
    ctx: Context,
    policy: Literal["fcfs", "priority"] = "priority",
    slots: int = arg(4, 1, 32),
    blocks: int = arg(200, 4, 400),
    low: int = arg(6, 1, 64),
    low_prompt: int = arg(16, 1, 200),
    low_output: int = arg(30, 1, 200),
    urgent_prompt: int = arg(16, 1, 200),
    urgent_output: int = arg(40, 1, 200),
    arrival: int = arg(5, 1, 100),
) -> Result:
    """Send an important request while unimportant ones run, and see which request is preempted, and when.

    `low` requests of priority 5 start at step 0, one of priority 0 arrives at step `arrival`. Block size 16. The lower
    value goes first, as in vLLM. A waiting request takes no blocks from running ones: it goes to the head of the
    queue. A running request that needs a block may preempt the least important running one.

    Returns:
        urgent_admitted [step]; urgent_wait [steps]
        queue_position [place]: Position of the important request among those admitted after its arrival; 1 is next.
        preemptions_before: Between its arrival and its admission.
        preemptions_total
        victims: Preempted requests in order; low0 is the oldest unimportant one.
        urgent_preempted
        reason: Why it waited at first; empty if it did not.
    """
    engine = ctx.core(policy=policy, max_num_seqs=slots, num_blocks=blocks, traced=True)
    asks = [Ask(f"low{i}", low_prompt, low_output, priority=5) for i in range(low)]
    engine.run([*asks, Ask("urgent", urgent_prompt, urgent_output, arrival=arrival, priority=0)])
    urgent = engine.outcomes["urgent"]
    came, admitted = urgent.arrival, urgent.admitted
    earlier = [
        o for o in engine.outcomes.values() if o.admitted is not None and came <= o.admitted < admitted
    ]
    reason = engine.steps[came].why_not("urgent")
    return Result(
        urgent_admitted=admitted,
        urgent_wait=admitted - came,
        queue_position=1 + len(earlier),
        preemptions_before=sum(came <= step <= admitted for step, _ in engine.preempted),
        preemptions_total=engine.num_preemptions,
        victims=[name for _, name in engine.preempted],
        urgent_preempted=bool(urgent.preemptions),
        reason=str(reason.reason) if reason else "",
    )


@experiment("E20", "E19")
def head_of_line(
    ctx: Context,
    blocks: int = arg(20, 4, 400),
    running_blocks: int = arg(12, 1, 400),
    running_steps: int = arg(15, 1, 100),
    large_blocks: int = arg(12, 1, 400),
    small: int = arg(4, 1, 60),
    small_every: int = arg(2, 1, 20),
    small_steps: int = arg(5, 1, 14),
) -> Result:
    """Put a large request at the head of the queue, with small ones behind it that would fit.

    One request holds `running_blocks` of the `blocks`; a large prompt arrives, then small ones of one block each, one
    every `small_every` steps from step 2 on. Block size 16; prompts leave room for their outputs in their last blocks.

    Returns: Under fcfs no request overtakes another, as in vLLM and here; bypass admits any request that fits.
        fcfs_large_admitted, bypass_large_admitted [step]
        fcfs_small_wait, bypass_small_wait [steps]: Mean steps between arrival and admission of the small requests.
        blocked_steps [steps]: fcfs: steps with free blocks for a small request that was held back by the head.
        head_reason: fcfs: what the scheduler says about the large request while it waits.
        small_reason: Reason that fcfs reports for the small requests.
        fcfs_steps, bypass_steps [steps]
    """
    if max(running_blocks, large_blocks) > blocks:
        raise BadArguments("running_blocks and large_blocks must each fit into blocks, or it could never run")
    fits, names = 16, [f"small{i}" for i in range(small)]
    asks = [
        Ask("running", max(1, running_blocks * fits - running_steps), running_steps),
        Ask("large", max(1, large_blocks * fits - 2), 2, arrival=1),
    ]
    for index, name in enumerate(names):
        asks.append(Ask(name, fits - small_steps, small_steps, arrival=2 + index * small_every))

    def held_back(step: StepView) -> bool:
        """Whether a small request waits in this step because of the one ahead, and blocks for it are free."""
        reasons = [view.reason for name in names if (view := step.why_not(name))]
        return step.free_blocks >= 1 and bool(step.plan.scheduled) and Reason.BEHIND_IN_QUEUE in reasons

    fcfs = ctx.core(num_blocks=blocks, traced=True).run(asks)
    bypass = ctx.core(num_blocks=blocks, make_scheduler=BypassScheduler).run(asks)
    runs = {"fcfs": fcfs, "bypass": bypass}
    waits = {
        name: sum(
            run.outcomes[request_id].admitted - run.outcomes[request_id].arrival for request_id in names
        )
        for name, run in runs.items()
    }
    blocked = sum(held_back(step) for step in fcfs.steps)
    reasons = [str(view.reason) for step in fcfs.steps if (view := step.why_not("large"))]
    return Result(
        **{f"{name}_large_admitted": run.outcomes["large"].admitted for name, run in runs.items()},
        **{f"{name}_small_wait": wait / small for name, wait in waits.items()},
        blocked_steps=blocked,
        head_reason=reasons[0] if reasons else "never waited",
        small_reason=str(Reason.BEHIND_IN_QUEUE) if blocked else "never waited",
        **{f"{name}_steps": run.num_steps for name, run in runs.items()},
    )

"""Admission rules on top of the real scheduler, and queues with and without a bound."""

from random import Random
from typing import Any, Literal

from engine.core.errors import RequestRejected
from engine.core.request import Request
from engine.core.sched_output import NotScheduled, Reason
from engine.core.scheduler import Scheduler
from quizzes.experiments import Ask, BadArguments, Context, Result, arg, experiment


class ReservingScheduler(Scheduler):
    """Admits a request only if all running ones can still reach their max_tokens, so that none is preempted."""

    def _admit(self, request: Request, plan: Any) -> NotScheduled | None:
        promised = sum(self._most_blocks(other) for other in self.running)
        if promised + self._most_blocks(request) > self.kv.pool.num_usable:
            details = {"need": self._most_blocks(request), "free": self.kv.pool.num_usable - promised}
            return NotScheduled(request.request_id, Reason.NO_BLOCKS, details)
        return super()._admit(request, plan)

    def _most_blocks(self, request: Request) -> int:
        """Blocks for its prompt and all of max_tokens; the last token is sampled and never computed."""
        return -(-(request.max_num_tokens - 1) // self.kv.block_size)


@experiment("E19")
def admission(
    ctx: Context,
    rule: Literal["prompt", "chunk", "watermark", "full"] = "prompt",
    blocks: int = arg(40, 2, 2000),
    requests: int = arg(12, 1, 100),
    prompt: int = arg(60, 1, 2000),
    output: int = arg(80, 1, 500),
    max_tokens: int = arg(0, 0, 2000),
    max_num_seqs: int = arg(256, 1, 256),
    block_size: int = arg(16, 1, 64),
    watermark: float = arg(0.1, 0, below=1),
    budget: int = arg(100_000, 256, 100_000),
) -> Result:
    """Admit requests by one of four rules and count preemptions.

    prompt: blocks for all known tokens must be free, and none are kept for the output (the default here and in vLLM).
    chunk: blocks for the first chunk suffice (scheduler_reserve_full_isl=False, here and in vLLM). watermark: as
    prompt, and this share of all blocks must stay free (watermark, here and in vLLM). full: room for max_tokens of
    every running request. budget: tokens per step, which cut prompts into chunks. A request generates `output` tokens
    and asks for at most max_tokens (0: the same number).

    Returns: Equal requests all wait at step 0.
        admitted_first [requests]: Requests admitted in the first step that admits any.
        blocks_first [blocks]: Taken after that step.
        peak_running [requests]; preemptions
        recomputed_tokens [tokens]: Computed more than once.
        steps [steps]: Steps until all requests have finished.
        mean_running [requests]: Requests that computed, per step.
        first_reason: Reason why the first refused request could not start; empty if none was refused.
        first_need [blocks]: Amount that the reason reports as missing or needed.
        refused [requests]: Rejected on arrival: with max_tokens they would not fit alone into an empty cache.
    """
    limit = max_tokens or output
    if limit < output:
        raise BadArguments(f"max_tokens {limit} is less than output {output}, so the output would be cut")
    engine = ctx.core(
        num_blocks=blocks,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        scheduler_reserve_full_isl=rule != "chunk",
        cache={"watermark": watermark if rule == "watermark" else 0.0},
        make_scheduler=ReservingScheduler if rule == "full" else Scheduler,
        traced=True,
    )
    refused = 0
    for index in range(requests):
        try:
            engine.add(Ask(f"r{index}", prompt, output, max_tokens=limit))
        except RequestRejected:
            refused += 1
    engine.run()
    first = next((step for step in engine.steps if step.stats.num_admitted), None)
    reasons = [entry for entry in first.plan.not_scheduled if entry.request_id] if first else []
    running = [len(step.rows) for step in engine.steps]
    return Result(
        admitted_first=len(first.rows) if first else 0,
        blocks_first=blocks - first.free_blocks if first else 0,
        peak_running=max(running, default=0),
        preemptions=engine.num_preemptions,
        recomputed_tokens=engine.computed_tokens - (requests - refused) * (prompt + output - 1),
        steps=engine.num_steps,
        mean_running=sum(running) / max(1, engine.num_steps),
        first_reason=str(reasons[0].reason) if reasons else "",
        first_need=reasons[0].details.get("need", 0) if reasons else 0,
        refused=refused,
    )


@experiment("E16", "E05")
def reservation_race(
    ctx: Context,
    blocks: int = arg(300, 50, 2000),
    requests: int = arg(80, 1, 200),
    prompt: int = arg(60, 1, 500),
    mean_output: int = arg(60, 1, 200),
    max_tokens: int = arg(400, 1, 700),
    seed: int = arg(0, 0, 10_000),
) -> Result:
    """Compare reserving KV for max_tokens at the start with allocating blocks as tokens come.

    Outputs are exponential with the given mean, cut at max_tokens. Reserved: a request starts when its prompt and all
    of max_tokens fit. Paged: the engine's scheduler. All steps count the same.

    Returns: The same requests both ways, all waiting at the start.
        reserved_running, paged_running [requests]: Requests that computed, per step.
        concurrency [x]: Paged over reserved.
        reserved_p99, paged_p99 [steps]: Latency from the start to the last token, 99th percentile.
        p99_reduction [share]
        preemptions: Paged; the other cannot have any.
    """
    if prompt + max_tokens > 16 * blocks:
        raise BadArguments(
            f"one request of {prompt} + {max_tokens} tokens must fit into {blocks} blocks of 16"
        )
    rng = Random(f"reservation-{seed}")
    outputs = [min(max_tokens, 1 + int(rng.expovariate(1 / mean_output))) for _ in range(requests)]
    asks = [Ask(f"r{i}", prompt, length, max_tokens=max_tokens) for i, length in enumerate(outputs)]
    settings: dict[str, Any] = {"num_blocks": blocks, "max_num_batched_tokens": 100_000, "max_num_seqs": 256}
    reserved = ctx.core(make_scheduler=ReservingScheduler, **settings).run(asks)
    paged = ctx.core(traced=True, **settings).run(asks)
    runs = {"reserved": reserved, "paged": paged}
    at = max(0, -(-99 * requests // 100) - 1)
    running = {name: sum(len(step.rows) for step in run.steps) / run.num_steps for name, run in runs.items()}
    p99 = {name: sorted(o.finished for o in run.outcomes.values())[at] + 1 for name, run in runs.items()}
    return Result(
        **{f"{name}_running": mean for name, mean in running.items()},
        concurrency=running["paged"] / running["reserved"],
        **{f"{name}_p99": steps for name, steps in p99.items()},
        p99_reduction=1 - p99["paged"] / p99["reserved"],
        preemptions=paged.num_preemptions,
    )


@experiment("E22")
def queue_bound(
    ctx: Context,
    slots: int = arg(4, 1, 64),
    service: int = arg(20, 1, 200),
    burst: int = arg(1, 1, 50),
    every: int = arg(4, 1, 100),
    arrivals: int = arg(100, 1, 300),
    bound: int = arg(0, 0, 300),
    random: bool = False,
    seed: int = arg(0, 0, 10_000),
) -> Result:
    """Compare an unbounded with a bounded queue when arrivals are faster than service.

    `burst` requests come every `every` steps, each needing `service` steps on one of `slots` slots. bound: a request
    that finds this many waiting is refused (0: no bound), as a gateway does, and vLLM with max_num_queued_reqs.
    random: gaps (geometric) and service times are drawn with the same means.

    Returns: Waits count from arrival to admission; refused requests are in none of the means.
        served, rejected [requests]; mean_wait, worst_wait [steps]
        last_wait [steps]: Wait of the last request served.
        peak_queue [requests]
        mean_queue [requests]: Waiting requests, averaged over the steps of the run.
        throughput [requests/step]
        little_wait [steps]: mean_queue / throughput: Little's law turned round.
        steps [steps]
    """
    rng = Random(f"queue-{seed}")
    engine = ctx.core(max_num_seqs=slots, traced=True)
    to_come, moment = [], 0.0
    for index in range(arrivals):
        length = max(1, round(rng.expovariate(1 / service))) if random else service
        to_come.append((int(moment), f"r{index}", min(length, 10 * service)))
        if index % burst == burst - 1:
            moment += rng.expovariate(1 / every) if random else every
    while to_come or engine.scheduler.has_unfinished():
        while to_come and to_come[0][0] <= engine.num_steps:
            _, name, length = to_come.pop(0)
            free = max(0, slots - len(engine.scheduler.running))
            if not bound or len(engine.scheduler.waiting) < bound + free:
                engine.add(Ask(name, 1, length))
        engine.step()
    engine.close()
    waiting = [step.stats.num_waiting for step in engine.steps]
    waits = [outcome.admitted - outcome.arrival for outcome in engine.outcomes.values()]
    mean_queue, throughput = sum(waiting) / len(waiting), len(waits) / len(waiting)
    return Result(
        served=len(waits),
        rejected=arrivals - len(waits),
        mean_wait=sum(waits) / len(waits),
        worst_wait=max(waits),
        last_wait=waits[-1],
        peak_queue=max(waiting),
        mean_queue=mean_queue,
        throughput=throughput,
        little_wait=mean_queue / throughput,
        steps=len(waiting),
    )


@experiment("E22")
def spike_relief(
    ctx: Context,
    slots: int = arg(4, 1, 32),
    service: int = arg(20, 2, 200),
    faster: float = arg(1.3, 1, 10),
    spike: int = arg(100, 1, 300),
    every: int = arg(2, 1, 50),
    limit: int = arg(20, 0, 1000),
    bound: int = arg(4, 1, 300),
) -> Result:
    """Send a spike to three engines: unchanged, with a faster model, and with a bounded queue.

    `spike` requests, one every `every` steps, need `service` steps each on `slots` slots; waits up to `limit` are
    acceptable. faster: service / `faster`, rounded up, without a bound. bounded: the unchanged engine refuses requests
    that find `bound` waiting.

    Returns: Share of all requests admitted within the limit; refused ones count as late.
        plain_met, faster_met, bounded_met [share]; plain_worst_wait, faster_worst_wait [steps]
        bounded_worst_wait [steps]: Longest wait among the requests served.
        refused [requests]
        overload [x]: Arrivals of the spike over what the plain engine can serve meanwhile.
    """

    def serve(service: int, bound: int | None = None) -> list[int]:
        """Return the waits of the admitted requests."""
        engine = ctx.core(max_num_seqs=slots)
        for index in range(spike):
            while engine.num_steps < index * every:
                engine.step()
            free = max(0, slots - len(engine.scheduler.running))
            if bound is None or len(engine.scheduler.waiting) < bound + free:
                engine.add(Ask(f"r{index}", 1, service))
        engine.run()
        return [outcome.admitted - outcome.arrival for outcome in engine.outcomes.values()]

    runs = {
        "plain": serve(service),
        "faster": serve(int(-(-service // faster))),
        "bounded": serve(service, bound),
    }
    return Result(
        **{f"{name}_met": sum(wait <= limit for wait in waits) / spike for name, waits in runs.items()},
        **{f"{name}_worst_wait": max(waits) for name, waits in runs.items()},
        refused=spike - len(runs["bounded"]),
        overload=service / slots / every,
    )

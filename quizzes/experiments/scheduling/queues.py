"""Queues with and without a bound."""

from random import Random

from quizzes.experiments import Ask, Context, Result, arg, experiment


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

from quizzes.experiments import Ask, Context, Result, arg, experiment


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

    Returns:
        Share of all requests admitted within the limit; refused ones count as late.
        plain_met, faster_met, bounded_met [share]
        plain_worst_wait, faster_worst_wait [steps]
        bounded_worst_wait [steps]: Longest wait among the requests served.
        refused [requests]
        overload [x]: Arrivals of the spike over what the plain engine can serve meanwhile.
    """
    plain = _serve(ctx, slots, service, spike, every, None)
    quick = _serve(ctx, slots, int(-(-service // faster)), spike, every, None)
    bounded = _serve(ctx, slots, service, spike, every, bound)

    def met(waits: list[int]) -> float:
        return sum(wait <= limit for wait in waits) / spike

    return Result(
        plain_met=met(plain),
        faster_met=met(quick),
        bounded_met=met(bounded),
        plain_worst_wait=max(plain),
        faster_worst_wait=max(quick),
        bounded_worst_wait=max(bounded),
        refused=spike - len(bounded),
        overload=service / slots / every,
    )


def _serve(ctx: Context, slots: int, service: int, spike: int, every: int, bound: int | None) -> list[int]:
    """Waits of the admitted requests."""
    engine = ctx.core(max_num_seqs=slots)
    for index in range(spike):
        while engine.num_steps < index * every:
            engine.step()
        free = max(0, slots - len(engine.scheduler.running))
        if bound is None or len(engine.scheduler.waiting) < bound + free:
            engine.add(Ask(f"r{index}", 1, service))
    engine.run()
    return [outcome.admitted - outcome.arrival for outcome in engine.outcomes.values()]

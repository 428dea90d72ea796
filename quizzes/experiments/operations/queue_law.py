from quizzes.experiments import Ask, Context, Result, arg, experiment


@experiment("E51", "E22")
def queue_law(
    ctx: Context,
    slots: int = arg(4, 1, 64),
    output: int = arg(10, 1, 200),
    burst: int = arg(3, 1, 64),
    every: int = arg(5, 1, 100),
    bursts: int = arg(20, 1, 60),
) -> Result:
    """Check Little's law on the engine's scheduler: mean queue length = rate x mean wait.

    `burst` requests of `output` tokens arrive every `every` steps; `slots` of them run at once.

    Returns:
        Over all steps until all requests have finished.
        mean_waiting [requests]
        mean_wait [steps]
        rate [requests/step]: Arrivals over the whole time.
        little [requests]: rate x mean wait.
        peak_waiting [requests]
        wait_at_peak [steps]: Wait of the request that arrived last into the longest queue.
        service_rate [requests/step]: slots / output: the most that can end per step.
    """
    asks = [Ask(f"r{b}-{i}", 1, output, arrival=b * every) for b in range(bursts) for i in range(burst)]
    engine = ctx.core(max_num_seqs=slots, traced=True).run(asks)
    outcomes = list(engine.outcomes.values())
    waits = [o.admitted - o.arrival for o in outcomes]
    lengths = [sum(o.arrival <= step < o.admitted for o in outcomes) for step in range(engine.num_steps)]
    peak = max(lengths)
    at = lengths.index(peak)
    last = max((o for o in outcomes if o.arrival <= at < o.admitted), key=lambda o: o.admitted, default=None)
    rate = len(outcomes) / engine.num_steps
    mean_wait = sum(waits) / len(waits)
    return Result(
        mean_waiting=sum(lengths) / engine.num_steps,
        mean_wait=mean_wait,
        rate=rate,
        little=rate * mean_wait,
        peak_waiting=peak,
        wait_at_peak=0 if last is None else last.admitted - last.arrival,
        service_rate=slots / output,
    )

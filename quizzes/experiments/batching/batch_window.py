from quizzes.experiments import Ask, BadArguments, Context, CoreEngine, Result, arg, experiment

PROMPT = 1


@experiment("E13")
def batch_window(
    ctx: Context,
    slots: int = arg(4, 1, 32),
    window: int = arg(10, 0, 200),
    arrivals: list[int] = arg([0, 1, 3, 8, 9, 20], 0, 500, count=(1, 60)),
    lens: list[int] = arg([5, 20, 4, 6, 12, 3], 1, 500, count=(1, 60)),
) -> Result:
    """Compare a server that collects batches with one that admits requests at every step.

    The collecting server starts a batch when the previous one has ended and either `slots` requests wait or the oldest
    has waited `window` steps. The continuous one is the engine's scheduler, unchanged. Both compute on that scheduler.

    Returns:
        By request, in order of arrival. A wait is the number of steps between arrival and admission.
        collected_waits, continuous_waits [steps]
        collected_finished, continuous_finished [step]
        collected_mean_wait, continuous_mean_wait [steps]
        collected_mean_latency, continuous_mean_latency [steps]: Mean steps from arrival to the last token.
        collected_steps, continuous_steps [steps]: Steps until all requests have finished, idle ones included.
    """
    if len(arrivals) != len(lens):
        raise BadArguments(f"{len(arrivals)} arrivals and {len(lens)} lens: give one length for each arrival")
    jobs = sorted(zip(arrivals, range(len(lens)), lens, strict=True))
    collected = _serve(ctx.core(max_num_seqs=slots), jobs, slots, window)
    continuous = _serve(ctx.core(max_num_seqs=slots, traced=True), jobs, 1, 0, collects=False)
    waits_a, ends_a = collected
    waits_b, ends_b = continuous
    count = len(jobs)
    return Result(
        collected_waits=waits_a,
        continuous_waits=waits_b,
        collected_finished=ends_a,
        continuous_finished=ends_b,
        collected_mean_wait=sum(waits_a) / count,
        continuous_mean_wait=sum(waits_b) / count,
        collected_mean_latency=sum(end + 1 - job[0] for end, job in zip(ends_a, jobs, strict=True)) / count,
        continuous_mean_latency=sum(end + 1 - job[0] for end, job in zip(ends_b, jobs, strict=True)) / count,
        collected_steps=max(ends_a) + 1,
        continuous_steps=max(ends_b) + 1,
    )


def _serve(
    engine: CoreEngine, jobs: list[tuple[int, int, int]], slots: int, window: int, *, collects: bool = True
) -> tuple[list[int], list[int]]:
    """(wait, step of the last token) of each job; the clock is the engine's step counter, idle steps included."""
    to_come = list(jobs)
    outside: list[tuple[int, int, int]] = []
    while to_come or outside or engine.scheduler.has_unfinished():
        now = engine.num_steps
        while to_come and to_come[0][0] <= now:
            outside.append(to_come.pop(0))
        if not collects:
            batch = outside
        elif not engine.scheduler.has_unfinished() and outside and _is_due(outside, slots, window, now):
            batch = outside[:slots]
        else:
            batch = []
        for _, index, length in batch:
            engine.add(Ask(f"r{index}", PROMPT, length))
        outside = outside[len(batch) :]
        engine.step()
    engine.close()
    outcomes = [engine.outcomes[f"r{index}"] for _, index, _ in jobs]
    waits = [outcome.admitted - job[0] for outcome, job in zip(outcomes, jobs, strict=True)]
    return waits, [outcome.finished for outcome in outcomes]


def _is_due(outside: list[tuple[int, int, int]], slots: int, window: int, now: int) -> bool:
    return len(outside) >= slots or now - outside[0][0] >= window

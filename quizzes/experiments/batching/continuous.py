"""Static batches against continuous batching, in steps of the scheduler."""

import math
from random import Random
from typing import Literal

from quizzes.experiments import Ask, BadArguments, Context, CoreEngine, Result, arg, experiment

PROMPT = 1
"""A prompt of one token: its first output comes in the step that reads it, so only the outputs count."""


@experiment("E13")
def static_vs_continuous(
    ctx: Context,
    slots: int = arg(4, 1, 64),
    lens: list[int] = arg([12, 40, 8, 25, 60, 9, 14, 33], 1, 2000, count=(1, 200)),
) -> Result:
    """Compare static with continuous batching on one list of output lengths (Orca, OSDI 2022, section 3).

    Both run on the engine's scheduler with `slots` as max_num_seqs. Static batching admits the next `slots` requests
    only when the previous batch is empty; continuous batching admits a request whenever a slot is free.

    Returns: Steps until all requests have finished. Slot use: tokens generated per slot and step.
        static_steps, continuous_steps [steps]; static_slot_use, continuous_slot_use [share]; speedup [x]
        static_finished, continuous_finished [step]: By request, in order of arrival: step of its last token, from 0.
    """
    continuous = ctx.core(max_num_seqs=slots, traced=True)
    continuous.run([Ask(f"r{i}", PROMPT, n) for i, n in enumerate(lens)])

    static = ctx.core(max_num_seqs=slots)
    for start in range(0, len(lens), slots):
        static.run([Ask(f"r{start + i}", PROMPT, n) for i, n in enumerate(lens[start : start + slots])])

    def finished(engine: object) -> list[int]:
        return [engine.outcomes[f"r{i}"].finished for i in range(len(lens))]  # type: ignore[attr-defined]

    total = sum(lens)
    return Result(
        static_steps=static.num_steps,
        continuous_steps=continuous.num_steps,
        static_slot_use=total / (slots * static.num_steps),
        continuous_slot_use=total / (slots * continuous.num_steps),
        speedup=static.num_steps / continuous.num_steps,
        static_finished=finished(static),
        continuous_finished=finished(continuous),
    )


LONGEST = 4000
Shape = Literal["fixed", "uniform", "exponential", "bimodal", "lognormal"]


@experiment("E13")
def length_distributions(
    ctx: Context,
    shape: Shape = "exponential",
    slots: int = arg(8, 1, 64),
    requests: int = arg(128, 1, 512),
    mean: int = arg(60, 1, 200),
    long_share: float = arg(0.1, 0, 1),
    long_factor: int = arg(10, 2, 10),
    seed: int = arg(0, 0, 10_000),
) -> Result:
    """Compare static with continuous batching on output lengths drawn from a distribution.

    bimodal: `long_share` of the requests are `long_factor` times as long as the others. A static batch waits for its
    longest member, so the ratio of the expected maximum of `slots` draws to the mean decides.

    Returns: Steps for one list of output lengths. Slot use: tokens generated per slot and step.
        lens_mean, lens_max [tokens]; static_steps, continuous_steps [steps]
        static_slot_use, continuous_slot_use [share]; speedup [x]
    """
    rng = Random(f"{shape}-{seed}")
    lens = [_draw(rng, shape, mean, long_share, long_factor) for _ in range(requests)]
    continuous = ctx.core(max_num_seqs=slots, traced=True)
    continuous.run([Ask(f"r{i}", PROMPT, n) for i, n in enumerate(lens)])
    static = ctx.core(max_num_seqs=slots)
    for start in range(0, requests, slots):
        static.run([Ask(f"r{start + i}", PROMPT, n) for i, n in enumerate(lens[start : start + slots])])
    total = sum(lens)
    return Result(
        lens_mean=total / requests,
        lens_max=max(lens),
        static_steps=static.num_steps,
        continuous_steps=continuous.num_steps,
        static_slot_use=total / (slots * static.num_steps),
        continuous_slot_use=total / (slots * continuous.num_steps),
        speedup=static.num_steps / continuous.num_steps,
    )


def _draw(rng: Random, shape: Shape, mean: int, long_share: float, long_factor: int) -> int:
    """One length with that mean (bimodal: the mean of both kinds together)."""
    if shape == "fixed":
        return mean
    if shape == "uniform":
        return rng.randint(1, 2 * mean - 1)
    if shape == "exponential":
        drawn = rng.expovariate(1 / mean)
    elif shape == "lognormal":
        drawn = rng.lognormvariate(math.log(mean) - 0.5, 1.0)
    else:
        short = mean / (1 + long_share * (long_factor - 1))
        drawn = short * long_factor if rng.random() < long_share else short
    return min(LONGEST, max(1, round(drawn)))


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

    Returns: By request, in order of arrival. A wait is the number of steps between arrival and admission.
        collected_waits, continuous_waits [steps]; collected_finished, continuous_finished [step]
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

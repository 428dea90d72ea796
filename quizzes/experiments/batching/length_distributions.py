import math
from random import Random
from typing import Literal

from quizzes.experiments import Ask, Context, Result, arg, experiment

PROMPT = 1
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

    Returns:
        Steps for one list of output lengths. Slot use: tokens generated per slot and step.
        lens_mean, lens_max [tokens]
        static_steps, continuous_steps [steps]
        static_slot_use, continuous_slot_use [share]
        speedup [x]
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

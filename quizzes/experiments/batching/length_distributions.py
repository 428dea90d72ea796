"""E13: what continuous batching gains is decided by how different the output lengths are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import Annotated, Literal

from pydantic import Field

from quizzes.experiments import Ask, Context, experiment

PROMPT = 1
LONGEST = 4000
Shape = Literal["fixed", "uniform", "exponential", "bimodal", "lognormal"]


@dataclass(frozen=True)
class Gain:
    """Steps for one list of output lengths. Slot use: tokens generated per slot and step."""

    lens_mean: Annotated[float, "tokens"]
    lens_max: Annotated[int, "tokens"]
    static_steps: Annotated[int, "steps"]
    continuous_steps: Annotated[int, "steps"]
    static_slot_use: Annotated[float, "share"]
    continuous_slot_use: Annotated[float, "share"]
    speedup: Annotated[float, "x"]


@experiment("E13")
def length_distributions(
    ctx: Context,
    *,
    shape: Shape = "exponential",
    slots: Annotated[int, Field(ge=1, le=64)] = 8,
    requests: Annotated[int, Field(ge=1, le=512)] = 128,
    mean: Annotated[int, Field(ge=1, le=200)] = 60,
    long_share: Annotated[float, Field(ge=0, le=1)] = 0.1,
    long_factor: Annotated[int, Field(ge=2, le=10)] = 10,
    seed: Annotated[int, Field(ge=0, le=10_000)] = 0,
) -> Gain:
    """Static and continuous batching of `requests` lengths drawn from a distribution.

    bimodal: `long_share` of the requests are `long_factor` times as long as the others. A static batch waits for its
    longest member, so the expected maximum of `slots` draws over the mean is the whole story.
    """
    rng = Random(f"{shape}-{seed}")
    lens = [_draw(rng, shape, mean, long_share, long_factor) for _ in range(requests)]
    continuous = ctx.core(max_num_seqs=slots, traced=True)
    continuous.run([Ask(f"r{i}", PROMPT, n) for i, n in enumerate(lens)])
    static = ctx.core(max_num_seqs=slots)
    for start in range(0, requests, slots):
        static.run([Ask(f"r{start + i}", PROMPT, n) for i, n in enumerate(lens[start : start + slots])])
    total = sum(lens)
    return Gain(
        total / requests,
        max(lens),
        static.num_steps,
        continuous.num_steps,
        total / (slots * static.num_steps),
        total / (slots * continuous.num_steps),
        static.num_steps / continuous.num_steps,
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

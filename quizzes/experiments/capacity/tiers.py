"""E63: ten times the traffic, with a cache and a small model in front."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from engine.sim.sizing import size
from quizzes.experiments import Context, experiment
from quizzes.experiments.capacity._deploy import Gpu, Share, deploy


@dataclass(frozen=True)
class Tiers:
    """GPUs by arithmetic, not rounded to machines."""

    gpus_now: Annotated[float, "GPUs"]
    gpus_later: Annotated[float, "GPUs"]
    gpus_later_untiered: Annotated[float, "GPUs"]
    growth: Annotated[float, "x"]
    """gpus_later / gpus_now."""
    large_share: Annotated[float, "share"]
    """Of the requests, that still reach the large model."""


@experiment("E63")
def tiers(
    ctx: Context,
    *,
    model: str = "llama-3-8b",
    small_model: str = "qwen3-0.6b",
    gpu: Gpu = "h100",
    rate: Annotated[float, Field(gt=0, le=1e5)] = 100.0,
    times: Annotated[float, Field(ge=1, le=1000)] = 10.0,
    cached: Share = 0.35,
    to_small: Share = 0.5,
    prompt: Annotated[int, Field(ge=1, le=100_000)] = 1000,
    output: Annotated[int, Field(ge=1, le=10_000)] = 200,
) -> Tiers:
    """GPUs when `times` the traffic comes, after a response cache and a router to a smaller model are put in front.

    cached: share of requests answered without any model. to_small: share of the rest that the small model takes.
    """

    def gpus(name: str, requests: float) -> float:
        if not requests:
            return 0.0
        deployment = deploy(name, gpu, max_model_len=prompt + output)
        found = size(deployment, rate=requests, prompt=prompt, output=output)
        return found.replicas * deployment.num_devices

    large = (1 - cached) * (1 - to_small)
    now = gpus(model, rate)
    later = gpus(model, rate * times * large) + gpus(small_model, rate * times * (1 - cached) * to_small)
    return Tiers(now, later, gpus(model, rate * times), later / now, large)

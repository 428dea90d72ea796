"""E59: from the decision to scale to the first token: what is pulled, read, loaded, compiled and warmed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment

Positive = Annotated[float, Field(gt=0, le=1e6)]
Seconds = Annotated[float, Field(ge=0, le=1e5)]
STAGES = ("provision", "pull_image", "fetch_model", "load_weights", "compile_and_capture", "warm_up")


@dataclass(frozen=True)
class ColdStart:
    """One new replica, stage by stage. GB are 1e9 bytes."""

    seconds: Annotated[float, "s"]
    stages: Annotated[dict[str, float], "s"]
    shares: Annotated[dict[str, float], "share"]
    largest: Annotated[str, "stage"]
    meets_objective: bool


@experiment("E59")
def cold_start(
    ctx: Context,
    *,
    provision: Seconds = 20.0,
    image_gb: Positive = 8.0,
    model_gb: Positive = 16.0,
    registry_mb_per_s: Positive = 400.0,
    store_mb_per_s: Positive = 100.0,
    disk_mb_per_s: Positive = 2000.0,
    baked: bool = False,
    image_on_node: bool = False,
    compile_and_capture: Seconds = 30.0,
    warm_up: Seconds = 5.0,
    objective: Seconds = 90.0,
) -> ColdStart:
    """Add a cold start up from bytes and rates.

    baked: the model lies in the image and is pulled with it, from the registry. Otherwise it is fetched from a store
    after the image. image_on_node: the image, and a baked model with it, is already on the node (a warm pool, a
    pre-pulled image). Then weights are read from disk to the device.
    """
    pulled = 0.0 if image_on_node else (image_gb + (model_gb if baked else 0.0)) * 1000 / registry_mb_per_s
    stages = {
        "provision": provision,
        "pull_image": pulled,
        "fetch_model": 0.0 if baked else model_gb * 1000 / store_mb_per_s,
        "load_weights": model_gb * 1000 / disk_mb_per_s,
        "compile_and_capture": compile_and_capture,
        "warm_up": warm_up,
    }
    total = sum(stages[name] for name in STAGES)
    return ColdStart(
        seconds=round(total, 3),
        stages={name: round(seconds, 3) for name, seconds in stages.items()},
        shares={name: round(seconds / total, 4) if total else 0.0 for name, seconds in stages.items()},
        largest=max(stages, key=lambda name: stages[name]),
        meets_objective=total <= objective,
    )

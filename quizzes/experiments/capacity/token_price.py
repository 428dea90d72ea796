"""E63: dollars per million tokens of a replica that is busy only part of the day."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from engine.sim.cost import CostModel, StepLoad
from engine.sim.memory import divide_memory
from quizzes.experiments import Context, experiment
from quizzes.experiments.capacity._deploy import Dtype, Gpu, KvDtype, Parallel, deploy


@dataclass(frozen=True)
class Price:
    """Of output tokens; prompts come on top."""

    tokens_per_s: Annotated[float, "tokens/s"]
    """Of one replica whose decode batch is full."""
    dollars_per_million: Annotated[float, "$"]
    break_even_busy: Annotated[float, "share"]
    """Share of the time that a replica must be busy to be as cheap as the managed price; above 1: never."""
    batch: Annotated[int, "requests"]


@experiment("E63")
def token_price(
    ctx: Context,
    *,
    model: str = "llama-3-8b",
    gpu: Gpu = "h100",
    tp: Parallel = 1,
    dtype: Dtype = "bfloat16",
    kv_dtype: KvDtype = "auto",
    batch: Annotated[int, Field(ge=1, le=2048)] = 64,
    context: Annotated[int, Field(ge=1, le=100_000)] = 1000,
    dollars_per_gpu_hour: Annotated[float, Field(gt=0, le=1000)] = 3.0,
    busy: Annotated[float, Field(gt=0, le=1)] = 0.5,
    managed_per_million: Annotated[float, Field(gt=0, le=1000)] = 0.6,
) -> Price:
    """Price of a million output tokens, from the step time of a decode batch. An idle hour costs like a busy one."""
    deployment = deploy(model, gpu, tp=tp, dtype=dtype, kv_dtype=kv_dtype, max_model_len=context)
    fitting = min(batch, max(1, divide_memory(deployment).num_tokens // context))
    step = CostModel(deployment).seconds(StepLoad(fitting, fitting, fitting, fitting * context))
    rate = fitting / step
    full = dollars_per_gpu_hour * deployment.num_devices / 3600 / rate * 1e6
    return Price(rate, full / busy, full / managed_per_million, fitting)

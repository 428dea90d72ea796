"""E56: sending a prompt's KV from a prefill machine to a decode machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from engine.sim.cost import CostModel, StepLoad, pairs_of
from engine.sim.hardware import get_link
from quizzes.experiments import Context, experiment
from quizzes.experiments.capacity._deploy import Gpu, KvDtype, Parallel, deploy


@dataclass(frozen=True)
class Handoff:
    """Of one prompt. Each GPU of the replica sends its own part over its own link."""

    kv_mb: Annotated[float, "MB"]
    """Of the whole prompt, all GPUs."""
    transfer_ms: Annotated[float, "ms"]
    prefill_ms: Annotated[float, "ms"]
    share_of_ttft: Annotated[float, "share"]
    """transfer / (prefill + transfer), nothing overlapped."""


@experiment("E56")
def kv_handoff(
    ctx: Context,
    *,
    model: str = "llama-3-8b",
    gpu: Gpu = "h100",
    tp: Parallel = 1,
    kv_dtype: KvDtype = "auto",
    prompt: Annotated[int, Field(ge=1, le=1_000_000)] = 1000,
    link: Literal["pcie3", "pcie4", "pcie5", "nvlink4", "ib-hdr", "ib-ndr", "ethernet-100g"] = "ib-ndr",
) -> Handoff:
    """Time to move a prompt's KV cache, beside the time to compute it."""
    deployment = deploy(model, gpu, tp=tp, kv_dtype=kv_dtype, max_model_len=prompt)
    cost = CostModel(deployment)
    prefill = cost.seconds(StepLoad(1, prompt, 1, 0, pairs_of(0, prompt, cost.window), prompt))
    held = deployment.model.kv_tokens_held(prompt)
    transfer = get_link(link).seconds(held * deployment.kv_bytes_per_token_per_device)
    return Handoff(
        kv_mb=held * deployment.kv_bytes_per_token / 1e6,
        transfer_ms=1000 * transfer,
        prefill_ms=1000 * prefill,
        share_of_ttft=transfer / (prefill + transfer),
    )

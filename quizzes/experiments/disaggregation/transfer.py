"""E45: the KV of a prompt on its way from a prefill to a decode replica: bytes, time, and the prefill it follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment


@dataclass(frozen=True)
class Transfer:
    """One prompt."""

    kv_bytes: Annotated[int, "B"]
    """Of the whole prompt, all devices of the sender together."""
    bytes_per_token: Annotated[int, "B"]
    transfer_ms: Annotated[float, "ms"]
    """Over one link per device, at the share of its rate that large transfers reach."""
    prefill_ms: Annotated[float, "ms"]
    """Time the prompt's forward pass takes, by the cost model."""
    transfer_share: Annotated[float, "share"]
    """transfer / (transfer + prefill)."""
    decode_step_ms: Annotated[float, "ms"]
    """One decode step of one request with this context."""
    transfer_steps: Annotated[float, "steps"]
    """Decode steps that take as long as the transfer."""


@experiment("E45")
def transfer(
    ctx: Context,
    *,
    model: str = "llama-3.1-70b",
    prompt: Annotated[int, Field(ge=1, le=131_072)] = 4000,
    link: str = "ib-ndr",
    hardware: str = "h100",
    tp: Annotated[int, Field(ge=1, le=8)] = 4,
    kv_cache_dtype: str = "auto",
) -> Transfer:
    """Price the hand-over of one prompt's KV cache. Links by name: nvlink4, ib-ndr, ethernet-100g, pcie5 ..."""
    from engine.sim.cost import CostModel, StepLoad, pairs_of
    from engine.sim.disaggregation import LINK_SHARE
    from engine.sim.hardware import get_hardware, get_link
    from engine.sim.memory import Deployment
    from engine.sim.models import get_model

    deployment = Deployment(get_model(model), get_hardware(hardware), tp=tp, kv_cache_dtype=kv_cache_dtype)
    wire = get_link(link)
    per_token = deployment.kv_bytes_per_token
    per_device = prompt * deployment.kv_bytes_per_token_per_device
    seconds = per_device / (wire.bytes_per_s * LINK_SHARE) + wire.latency_s
    cost = CostModel(deployment)
    load = StepLoad(1, prompt, 1, prefill_pairs=pairs_of(0, prompt, None), prefill_context=prompt)
    prefill = cost.seconds(load)
    step = cost.decode_seconds(1, prompt)
    return Transfer(
        kv_bytes=round(prompt * per_token),
        bytes_per_token=round(per_token),
        transfer_ms=1e3 * seconds,
        prefill_ms=1e3 * prefill,
        transfer_share=seconds / (seconds + prefill),
        decode_step_ms=1e3 * step,
        transfer_steps=seconds / step,
    )

"""A model on a GPU in virtual time: what the experiments of this folder serve their requests on."""

from __future__ import annotations

from typing import Literal

from engine.sim.hardware import get_hardware
from engine.sim.memory import Deployment
from engine.sim.models import get_model

Model = Literal["llama-3.1-8b", "qwen2.5-7b", "qwen3-14b", "llama-3.1-70b"]
Gpu = Literal["l4", "a10g", "a100-80", "h100", "h200"]


def deployment(
    model: Model = "llama-3.1-8b",
    gpu: Gpu = "h100",
    *,
    budget: int = 8192,
    max_num_seqs: int = 256,
    max_model_len: int = 65_536,
    tp: int = 1,
) -> Deployment:
    """One replica. budget: max_num_batched_tokens."""
    return Deployment(
        get_model(model),
        get_hardware(gpu),
        tp=tp,
        max_num_batched_tokens=budget,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
    )

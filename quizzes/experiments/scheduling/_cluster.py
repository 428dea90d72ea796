"""Deployments and lengths that the experiments of this folder share."""

from __future__ import annotations

from typing import Literal

from engine.config import ConfigError
from engine.sim.memory import Deployment
from engine.sim.workload import Lengths
from quizzes.experiments.registry import BadArguments
from quizzes.experiments.simulated import deploy

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
    return deploy(
        model,
        gpu,
        tp=tp,
        max_num_batched_tokens=budget,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
    )


def lengths(name: str, text: str, most: int) -> Lengths:
    """Return the lengths that an argument describes. Raises BadArguments if it is not valid or exceeds `most`."""
    try:
        found = Lengths.parse(text)
    except ConfigError as error:
        raise BadArguments(f"{name}: {error}") from None
    if found.longest > most:
        raise BadArguments(f"{name} = {text!r} may be {found.longest} tokens long; keep it to {most}")
    return found

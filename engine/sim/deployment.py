"""Build a deployment from names, with vLLM's defaults."""

from __future__ import annotations

from engine.config import ConfigError
from engine.config.scheduler import default_batch_sizes
from engine.sim.calibration import rates_on_cpu
from engine.sim.cost import Rates
from engine.sim.hardware import get_hardware
from engine.sim.memory import Deployment
from engine.sim.models import get_model


def make_deployment(
    *,
    model: str,
    gpu: str,
    tp: int = 1,
    pp: int = 1,
    dtype: str | None = None,
    kv_cache_dtype: str = "auto",
    gpu_memory_utilization: float = 0.92,
    block_size: int = 16,
    max_model_len: int | None = None,
    longest: int | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
) -> Deployment:
    """Look up the names and fill in the defaults. Raises ConfigError.

    longest: tokens of the workload's longest request; None: the model's maximum.
    """
    shape, hardware = get_model(model), get_hardware(gpu)
    most = shape.max_position_embeddings
    if max_model_len is None:
        max_model_len = most if longest is None else min(most, -(-longest // 1024) * 1024)
    if max_model_len > most:
        raise ConfigError(
            f"max_model_len {max_model_len} is more than the {most} positions of {shape.name}; lower it to {most}"
        )
    kind = "cpu" if hardware.is_cpu else "cuda"
    tokens, seqs = default_batch_sizes(kind, int(hardware.memory_bytes))
    tokens = max_num_batched_tokens or max(tokens, max_num_seqs or 0)
    return Deployment(
        shape,
        hardware,
        tp,
        pp,
        dtype or ("float32" if hardware.is_cpu else "bfloat16"),
        kv_cache_dtype,
        gpu_memory_utilization,
        block_size,
        tokens,
        min(max_num_seqs or seqs, tokens),
        max_model_len,
    )


def calibrated_rates(deployment: Deployment) -> Rates | None:
    """Return what was measured on this CPU; None for datasheet figures and typical efficiencies."""
    found = rates_on_cpu(deployment.model) if deployment.hardware.is_cpu else None
    return found.rates if found else None

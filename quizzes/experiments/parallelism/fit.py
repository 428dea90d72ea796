from typing import Any

from engine.sim.cost import CostModel
from engine.sim.hardware import get_hardware
from engine.sim.memory import Deployment, DoesNotFit, plan_memory
from engine.sim.models import get_model
from quizzes.experiments import Context, Result, arg, experiment


@experiment("E46", "E63")
def fit(
    ctx: Context,
    model: str = "llama-2-7b",
    hardware: str = "a100-80",
    tp: int = arg(2, 1, 16),
    max_model_len: int = arg(4096, 128, 131_072),
) -> Result:
    """Decide whether a model needs several devices, and what tensor and data parallelism leave for the KV cache.

    Plans the memory of one replica on tp devices and of one on a single device.

    Returns:
        fits_one: Weights and one sequence of max_model_len fit one device.
        weights_gb_per_device, kv_gb_per_device [GB]
        kv_tokens [tokens]: KV tokens of all devices of one replica.
        kv_tokens_replicas [tokens]: KV tokens of tp single-device replicas together; 0 if one does not fit.
        single_stream_ms [ms]: Time per token of one request, by the cost model.
        single_stream_ms_one [ms]: The same on one device; 0 if it does not fit.
    """
    shape, device = get_model(model), get_hardware(hardware)

    def plan(size: int) -> tuple[Any, float]:
        deployment = Deployment(shape, device, tp=size, max_model_len=max_model_len)
        return plan_memory(deployment), 1e3 * CostModel(deployment).decode_seconds(1, max_model_len // 2)

    many, ms = plan(tp)
    try:
        one, ms_one = plan(1)
    except DoesNotFit:
        one, ms_one = None, 0.0
    return Result(
        fits_one=one is not None,
        weights_gb_per_device=many.weights / 1e9,
        kv_gb_per_device=many.kv_budget / 1e9,
        kv_tokens=many.num_tokens,
        kv_tokens_replicas=0 if one is None else tp * one.num_tokens,
        single_stream_ms=ms,
        single_stream_ms_one=ms_one,
    )

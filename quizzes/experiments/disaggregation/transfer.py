from engine.sim.cost import CostModel, StepLoad, pairs_of
from engine.sim.disaggregation import LINK_SHARE
from engine.sim.hardware import get_link
from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.simulated import deploy


@experiment("E45")
def transfer(
    ctx: Context,
    model: str = "llama-3.1-70b",
    prompt: int = arg(4000, 1, 131_072),
    link: str = "ib-ndr",
    hardware: str = "h100",
    tp: int = arg(4, 1, 8),
    kv_cache_dtype: str = "auto",
) -> Result:
    """Price the transfer of one prompt's KV cache from a prefill to a decode replica.

    Links by name: nvlink4, ib-ndr, ethernet-100g, pcie5 ...

    Returns:
        Figures of one prompt.
        kv_bytes [B]: KV of the whole prompt, all devices of the sender together.
        bytes_per_token [B]
        transfer_ms [ms]: Time over one link per device, at the share of its rate that large transfers reach.
        prefill_ms [ms]: Time the prompt's forward pass takes, by the cost model.
        transfer_share [share]: transfer / (transfer + prefill).
        decode_step_ms [ms]: One decode step of one request with this context.
        transfer_steps [steps]: Decode steps that take as long as the transfer.
    """
    deployment = deploy(model, hardware, tp=tp, kv_cache_dtype=kv_cache_dtype)
    wire = get_link(link)
    per_token = deployment.kv_bytes_per_token
    per_device = prompt * deployment.kv_bytes_per_token_per_device
    seconds = per_device / (wire.bytes_per_s * LINK_SHARE) + wire.latency_s
    cost = CostModel(deployment)
    load = StepLoad(1, prompt, 1, prefill_pairs=pairs_of(0, prompt, None), prefill_context=prompt)
    prefill = cost.seconds(load)
    step = cost.decode_seconds(1, prompt)
    return Result(
        kv_bytes=round(prompt * per_token),
        bytes_per_token=round(per_token),
        transfer_ms=1e3 * seconds,
        prefill_ms=1e3 * prefill,
        transfer_share=seconds / (seconds + prefill),
        decode_step_ms=1e3 * step,
        transfer_steps=seconds / step,
    )

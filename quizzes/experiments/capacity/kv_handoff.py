from typing import Literal

from engine.sim.cost import CostModel, StepLoad, pairs_of
from engine.sim.hardware import get_link
from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.capacity._deploy import Gpu, KvDtype, Parallel
from quizzes.experiments.simulated import deploy


@experiment("E56")
def kv_handoff(
    ctx: Context,
    model: str = "llama-3-8b",
    gpu: Gpu = "h100",
    tp: Parallel = 1,
    kv_dtype: KvDtype = "auto",
    prompt: int = arg(1000, 1, 1_000_000),
    link: Literal["pcie3", "pcie4", "pcie5", "nvlink4", "ib-hdr", "ib-ndr", "ethernet-100g"] = "ib-ndr",
) -> Result:
    """Compare the time to send a prompt's KV from a prefill to a decode machine with the time to compute it.

    Returns:
        Figures of one prompt. Each GPU of the replica sends its own part over its own link.
        kv_mb [MB]: KV of the whole prompt, all GPUs.
        transfer_ms, prefill_ms [ms]
        share_of_ttft [share]: transfer / (prefill + transfer), nothing overlapped.
    """
    deployment = deploy(model, gpu, tp=tp, kv_cache_dtype=kv_dtype, max_model_len=prompt)
    cost = CostModel(deployment)
    prefill = cost.seconds(StepLoad(1, prompt, 1, 0, pairs_of(0, prompt, cost.window), prompt))
    held = deployment.model.kv_tokens_held(prompt)
    transfer = get_link(link).seconds(held * deployment.kv_bytes_per_token_per_device)
    return Result(
        kv_mb=held * deployment.kv_bytes_per_token / 1e6,
        transfer_ms=1000 * transfer,
        prefill_ms=1000 * prefill,
        share_of_ttft=transfer / (prefill + transfer),
    )

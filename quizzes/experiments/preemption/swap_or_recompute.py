from typing import Literal

from engine.sim.hardware import get_link
from engine.sim.sizing import swap_or_recompute as compare
from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.simulated import deploy


@experiment("E18")
def swap_or_recompute(
    ctx: Context,
    model: str = "llama-3.1-8b",
    gpu: str = "h100",
    tp: int = arg(1, 1, 16),
    tokens: int = arg(8192, 1, 131_072),
    link: str = "",
    copies: Literal["whole", "per_block"] = "whole",
    overhead_us: float = arg(5.0, 0, 1000),
    block_size: int = arg(16, 1, 256),
) -> Result:
    """Compare copying a preempted request's KV back with computing it again, and find the break-even.

    Copies run at the link's full rate, recomputation at a roofline's (`engine/sim/cost.py`). `link`: pcie3, pcie4 ...;
    empty: the device's own. copies="whole": the KV moves as one piece. "per_block": one transfer for each block, layer
    and K or V, as in vLLM's V0, each with `overhead_us` to start it (PagedAttention paper, section 7.3).

    Returns:
        One preempted request of `tokens` tokens, on one device of the deployment.
        kv_bytes [bytes]
        swap_ms [ms]: Out and in again.
        one_way_ms [ms]
        recompute_ms [ms]: Time in a step without other requests.
        ratio [x]: recompute / swap: above 1, swapping is cheaper.
        cheaper
        break_even [tokens]: Copied whole, swapping stays cheaper from here on; -1: not up to 131,072 tokens.
        num_copies: Transfers out and in: 2, or with per_block two per block, layer and direction (K and V lie apart).
    """
    deployment = deploy(model, gpu, tp=tp, block_size=block_size)
    found = compare(deployment, tokens, link=get_link(link) if link else None)
    num_copies, swap_ms = 2, 1000 * found.swap_seconds
    if copies == "per_block":
        num_copies = 2 * 2 * deployment.model.num_layers * -(-tokens // block_size)
        swap_ms += num_copies * overhead_us / 1000
    recompute_ms = 1000 * found.recompute_seconds
    return Result(
        kv_bytes=tokens * deployment.kv_bytes_per_token_per_device,
        swap_ms=swap_ms,
        one_way_ms=swap_ms / 2,
        recompute_ms=recompute_ms,
        ratio=recompute_ms / swap_ms,
        cheaper="swap" if swap_ms < recompute_ms else "recompute",
        break_even=found.break_even if found.break_even is not None else -1,
        num_copies=num_copies,
    )

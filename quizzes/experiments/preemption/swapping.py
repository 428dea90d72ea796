"""Swap or recompute, priced on a simulated GPU."""

from typing import Any, Literal

from engine.sim.hardware import get_link
from engine.sim.run import make_engine, simulate
from engine.sim.sizing import swap_or_recompute as compare
from engine.sim.workload import Lengths, Workload
from quizzes.experiments import Result, arg, deploy, experiment


@experiment("E18")
def swap_or_recompute(
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

    Returns: One preempted request of `tokens` tokens, on one device of the deployment.
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


@experiment("E18")
def swap_under_load(
    model: str = "llama-3.1-8b",
    gpu: str = "h100",
    num_requests: int = arg(60, 2, 200),
    rate: float = arg(20.0, above=0, high=1000),
    prompt: int = arg(1000, 1, 8000),
    output: int = arg(300, 1, 1000),
    num_blocks: int = arg(1500, 8, 20_000),
) -> Result:
    """Compare recompute with swap under one load that exceeds memory: latencies in virtual time (`engine/sim`).

    Three runs of one workload on a simulated GPU: ample blocks, `num_blocks` with recompute, and with swap.

    Returns: Times of all requests; with ample memory for comparison.
        preemptions_recompute, preemptions_swap
        ttft_p99_ample, ttft_p99_recompute, ttft_p99_swap, itl_p99_ample, itl_p99_recompute, itl_p99_swap,
            itl_max_ample, itl_max_recompute, itl_max_swap [ms]
        copied_mib [MiB]
        extra_prefill_tokens [tokens]: Computed a second time, in the recompute run.
        tokens_per_s_recompute, tokens_per_s_swap [tokens/s]
    """
    deployment = deploy(model, gpu, max_num_batched_tokens=2048)
    load = list(Workload(num_requests, rate, Lengths(prompt, prompt), Lengths(output, output), seed=1))

    def run(blocks: int, swap_space: float = 0.0) -> Any:
        engine = make_engine(
            deployment, num_blocks=blocks + 1, enable_prefix_caching=False, swap_space=swap_space
        )
        return simulate(engine, load)

    ample, recompute, swap = run(40_000), run(num_blocks), run(num_blocks, 64.0)
    runs = {"ample": ample, "recompute": recompute, "swap": swap}
    return Result(
        preemptions_recompute=recompute.num_preemptions,
        preemptions_swap=swap.num_preemptions,
        **{f"ttft_p99_{name}": 1000.0 * run.ttft.p99 for name, run in runs.items()},
        **{f"itl_p99_{name}": 1000.0 * run.itl.p99 for name, run in runs.items()},
        **{f"itl_max_{name}": 1000.0 * run.itl.max for name, run in runs.items()},
        copied_mib=swap.host_bytes / 2**20,
        extra_prefill_tokens=recompute.prefill_tokens - ample.prefill_tokens,
        tokens_per_s_recompute=recompute.output_tokens_per_s,
        tokens_per_s_swap=swap.output_tokens_per_s,
    )

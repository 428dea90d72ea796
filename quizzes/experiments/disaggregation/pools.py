"""Prefill and decode on different replicas: hand-over, transfer, comparison."""

from typing import Any

from engine.core.request import Request
from engine.sampling_params import SamplingParams
from engine.sim.cost import CostModel, StepLoad, pairs_of
from engine.sim.disaggregation import LINK_SHARE, DisaggregatedFleet, place_blocks
from engine.sim.fleet import Fleet
from engine.sim.hardware import get_link
from engine.sim.router import LeastLoaded
from engine.sim.run import make_engine
from engine.sim.workload import Lengths, Workload
from quizzes.experiments import Ask, Context, Result, arg, deploy, experiment


@experiment("E45")
def handoff(
    ctx: Context,
    prompt: int = arg(1000, 1, 20_000),
    block_size: int = arg(16, 1, 256),
    output: int = arg(20, 2, 500),
    free_blocks: int = arg(5000, 1, 20_000),
) -> Result:
    """Count what a decode replica still computes after a prompt's KV has arrived in whole blocks.

    The KV is placed as the simulator's decode pool places it, then the real scheduler admits the request. free_blocks:
    size of the cache, which must hold the request; blocks that find no room are computed again.

    Returns: One request after its prefill, on the decode replica's scheduler.
        blocks_placed [blocks]: Full blocks of the prompt in the cache when the request arrives.
        cached_tokens [tokens]: Tokens that admission finds in the cache.
        first_step_tokens [tokens]: Tokens of its first step here: the rest of the last block and the first token.
        recomputed_prompt_tokens [tokens]
        steps [steps]: Steps on this replica, for all but the first output token.
    """
    engine = ctx.core(
        num_blocks=free_blocks, block_size=block_size, max_num_batched_tokens=32_768, traced=True
    )
    tokens = [*range(prompt), 10**6]  # the first output token came with the prefill
    request = Request("r", tokens, SamplingParams(max_tokens=output - 1))
    placed = place_blocks(engine.scheduler.kv, request, prompt)
    engine.run([Ask("r", tokens, output - 1)])
    cached = engine.outcomes["r"].cached_tokens
    return Result(
        blocks_placed=placed,
        cached_tokens=cached,
        first_step_tokens=engine.steps[0].num_tokens,
        recomputed_prompt_tokens=max(0, prompt - cached),
        steps=engine.num_steps,
    )


@experiment("E45")
def transfer(
    model: str = "llama-3.1-70b",
    prompt: int = arg(4000, 1, 131_072),
    link: str = "ib-ndr",
    hardware: str = "h100",
    tp: int = arg(4, 1, 8),
    kv_cache_dtype: str = "auto",
) -> Result:
    """Price the transfer of one prompt's KV cache from a prefill to a decode replica.

    Returns: Figures of one prompt. Links by name: nvlink4, ib-ndr, ethernet-100g, pcie5 ...
        kv_bytes [B]: KV of the whole prompt, all devices of the sender together.
        bytes_per_token [B]
        transfer_ms [ms]: Time over one link per device, at the share of its rate that large transfers reach.
        prefill_ms [ms]: Time the prompt's forward pass takes, by the cost model.
        transfer_share [share]: transfer / (transfer + prefill).
        decode_step_ms [ms]: One decode step of one request with this context.
        transfer_steps [steps]: Decode steps that take as long as the transfer.
    """
    deployment = deploy(model, hardware, holds=prompt, tp=tp, kv_cache_dtype=kv_cache_dtype)
    wire = get_link(link)
    per_token = deployment.kv_bytes_per_token
    per_device = prompt * deployment.kv_bytes_per_token_per_device
    seconds = per_device / (wire.bytes_per_s * LINK_SHARE) + wire.latency_s
    cost = CostModel(deployment)
    load = StepLoad(1, prompt, 1, prefill_pairs=pairs_of(0, prompt, None), prefill_context=prompt)
    prefill, step = cost.seconds(load), cost.decode_seconds(1, prompt)
    return Result(
        kv_bytes=round(prompt * per_token),
        bytes_per_token=round(per_token),
        transfer_ms=1e3 * seconds,
        prefill_ms=1e3 * prefill,
        transfer_share=seconds / (seconds + prefill),
        decode_step_ms=1e3 * step,
        transfer_steps=seconds / step,
    )


@experiment("E45", seconds=30)
def compare(
    model: str = "llama-3.1-8b",
    hardware: str = "h100",
    prefill: int = arg(1, 1, 8),
    decode: int = arg(1, 1, 8),
    prompt: int = arg(4000, 16, 32_000),
    output: int = arg(200, 2, 1000),
    rate: float = arg(4.0, above=0, high=500),
    requests: int = arg(60, 2, 300),
    link: str = "nvlink4",
    budget: int = arg(8192, 128, 65_536),
) -> Result:
    """Compare co-located with disaggregated prefill and decode on the same devices: TTFT, ITL, end-to-end latency.

    Serves Poisson arrivals in virtual time. budget: max_num_batched_tokens of every replica, which chunks prompts
    where both phases share a device.

    Returns:
        colocated_ttft_ms, split_ttft_ms [ms]: Mean TTFT.
        colocated_itl_p99_ms, split_itl_p99_ms [ms]: 99th percentile of the inter-token latency, hand-over included.
        colocated_tpot_ms [ms]: Mean time per token after the first.
        split_tpot_ms, colocated_e2e_ms, split_e2e_ms [ms]; split_wins_ttft, split_wins_itl, split_wins_e2e
        transfers [transfers]; transfer_bytes [B]
        transfer_ms [ms]: Mean: from the first token until the KV has arrived, waiting for the sender's link included.
        prefill_busy, decode_busy [share]: Share of the run in which the pool's replicas compute, on average.
    """
    longest = prompt + output + 16
    deployment = deploy(model, hardware, max_num_batched_tokens=budget, max_model_len=longest)
    lengths = Lengths(prompt, prompt), Lengths(output, output)
    load = Workload(requests, rate, *lengths, max_model_len=longest, seed=7)

    def engine() -> Any:
        return make_engine(deployment)

    together: Any = Fleet(engine, prefill + decode, LeastLoaded()).run(load).run
    pools = (prefill, decode, LeastLoaded(), LeastLoaded())
    apart = DisaggregatedFleet(engine, engine, *pools, get_link(link)).run(load)
    split: Any = apart.run
    runs = {"colocated": together, "split": split}
    replicas: dict[str, Any] = {"prefill": apart.prefill, "decode": apart.decode}
    return Result(
        **{f"{name}_ttft_ms": 1e3 * run.ttft.mean for name, run in runs.items()},
        **{f"{name}_itl_p99_ms": 1e3 * run.itl.p99 for name, run in runs.items()},
        **{f"{name}_tpot_ms": 1e3 * run.tpot.mean for name, run in runs.items()},
        **{f"{name}_e2e_ms": 1e3 * run.e2e.mean for name, run in runs.items()},
        split_wins_ttft=split.ttft.mean < together.ttft.mean,
        split_wins_itl=split.itl.p99 < together.itl.p99,
        split_wins_e2e=split.e2e.mean < together.e2e.mean,
        transfers=apart.transfers,
        transfer_bytes=round(apart.transfer_bytes),
        transfer_ms=1e3 * apart.mean_transfer_seconds,
        **{
            f"{name}_busy": sum(replica.busy_seconds for replica in pool) / len(pool) / split.seconds
            for name, pool in replicas.items()
        },
    )

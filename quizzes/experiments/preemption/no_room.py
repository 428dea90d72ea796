"""Too little memory: waiting, refusal, bounds of a step, and the price of swapping or recomputing."""

from typing import Any, Literal

from engine.core.errors import RequestRejected
from engine.sim.hardware import get_link
from engine.sim.memory import plan_memory
from engine.sim.run import make_engine, simulate
from engine.sim.sizing import swap_or_recompute as compare
from engine.sim.workload import Lengths, Workload
from prep_common.text import GIB
from quizzes.experiments import Ask, Context, Result, arg, deploy, experiment


@experiment("E53")
def no_room(
    ctx: Context,
    situation: Literal["newcomer", "growth", "prompt_too_long", "never_fits"] = "newcomer",
    prompt: int = arg(60, 1, 2000),
    output: int = arg(20, 2, 500),
    num_blocks: int = arg(12, 2, 500),
    block_size: int = arg(16, 1, 256),
    max_model_len: int = arg(1000, 2, 100_000),
) -> Result:
    """Run out of KV memory in several ways and see whether the engine waits, preempts or refuses.

    Two requests have `prompt` and `output` tokens; a last one differs. newcomer: it has the same lengths and arrives
    when the pool is nearly full. growth: all three start at once and grow. prompt_too_long: its prompt is
    max_model_len. never_fits: it alone would need one block more than the pool has.

    Returns:
        outcome: waits, preempts, rejected, or runs (nothing ran out).
        code: Code of a rejection: prompt_too_long or exceeds_cache; empty otherwise.
        reason: Why the last request computed nothing, the first time it did not; empty if it always did.
        finished, rejected [requests]; num_preemptions; peak_blocks [blocks]
        waited_steps [steps]: Steps from the last request's arrival until it first computed; 0 if it was refused.
        blocks_needed [blocks]: Blocks that the last request alone may need.
    """
    engine = ctx.core(
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=max_model_len,
        enable_prefix_caching=False,
        traced=True,
    )
    lengths = {
        "prompt_too_long": max_model_len,
        "never_fits": max(1, num_blocks * block_size + 2 - output),
    }
    length = lengths.get(situation, prompt)
    engine.add(Ask("r0", prompt, output))
    engine.add(Ask("r1", prompt, output))
    if situation != "growth":
        engine.step()
    code = ""
    try:
        engine.add(Ask("last", length, output))
    except RequestRejected as refusal:
        code = refusal.code
    engine.run()
    views = [view for step in engine.steps if not code and (view := step.why_not("last"))]
    outcome = engine.outcomes.get("last")
    waited = outcome.admitted - outcome.arrival if outcome is not None else 0
    preempted = engine.num_preemptions
    return Result(
        outcome="rejected" if code else "preempts" if preempted else "waits" if waited else "runs",
        code=code,
        reason=str(views[0].reason) if views else "",
        finished=sum(o.finished is not None for o in engine.outcomes.values()),
        rejected=int(bool(code)),
        num_preemptions=preempted,
        peak_blocks=engine.peak_blocks,
        waited_steps=waited,
        blocks_needed=-(-(length + output - 1) // block_size),
    )


@experiment("E53")
def tail_context(
    ctx: Context,
    utilization: float = arg(0.95, above=0.3, high=1),
    model: str = "llama-3.1-8b",
    gpu: str = "h100",
    chats: int = arg(20, 0, 64),
    tail_prompt: int = arg(30_000, 1, 120_000),
    budget: int = arg(2048, 64, 16_384),
    num_blocks: int = arg(2500, 10, 20_000),
) -> Result:
    """Check whether one long request can make a step exceed the peak measured at start: tokens, rows, blocks.

    `chats` ordinary requests and one with a very long prompt share a pool of `num_blocks` blocks of 16 tokens.

    Returns: Activations grow with the tokens of a step, KV with the blocks in use; both limits are set at start.
        peak_step_tokens, budget [tokens]; peak_blocks, num_blocks [blocks]; num_preemptions
        finished, rejected [requests]
        over_bounds: A step held more tokens than its budget, or the pool gave more blocks than it has.
        kv_gib [GiB]: KV pool on a real card at this gpu_memory_utilization.
        outside_gib [GiB]: Memory of the card left to other processes, fragmentation and unprofiled allocations.
    """
    card: dict[str, Any] = {"gpu_memory_utilization": utilization, "max_num_batched_tokens": budget}
    plan = plan_memory(deploy(model, gpu, **card))
    engine = ctx.core(
        num_blocks=num_blocks, max_num_batched_tokens=budget, enable_prefix_caching=False, traced=True
    )
    rejected = 0
    for ask in [*(Ask(f"chat{i}", 800, 60) for i in range(chats)), Ask("tail", tail_prompt, 60)]:
        try:
            engine.add(ask)
        except RequestRejected:
            rejected += 1
    engine.run()
    peak_tokens = max((step.num_tokens for step in engine.steps), default=0)
    return Result(
        peak_step_tokens=peak_tokens,
        budget=budget,
        peak_blocks=engine.peak_blocks,
        num_blocks=num_blocks,
        num_preemptions=engine.num_preemptions,
        finished=sum(o.finished is not None for o in engine.outcomes.values()),
        rejected=rejected,
        over_bounds=peak_tokens > budget or engine.peak_blocks > num_blocks,
        kv_gib=plan.kv_budget / GIB,
        outside_gib=(plan.total - plan.usable) / GIB,
    )


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
    deployment = deploy(model, gpu, holds=tokens, tp=tp, block_size=block_size)
    comparison = compare(deployment, tokens, link=get_link(link) if link else None)
    num_copies, swap_ms = 2, 1000 * comparison.swap_seconds
    if copies == "per_block":
        num_copies = 2 * 2 * deployment.model.num_layers * -(-tokens // block_size)
        swap_ms += num_copies * overhead_us / 1000
    recompute_ms = 1000 * comparison.recompute_seconds
    return Result(
        kv_bytes=tokens * deployment.kv_bytes_per_token_per_device,
        swap_ms=swap_ms,
        one_way_ms=swap_ms / 2,
        recompute_ms=recompute_ms,
        ratio=recompute_ms / swap_ms,
        cheaper="swap" if swap_ms < recompute_ms else "recompute",
        break_even=comparison.break_even if comparison.break_even is not None else -1,
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

    Returns: One workload on a simulated GPU: all blocks of the card, `num_blocks` with recompute, and with swap.
        preemptions_recompute, preemptions_swap
        ttft_p99_ample, ttft_p99_recompute, ttft_p99_swap, itl_p99_ample, itl_p99_recompute, itl_p99_swap,
            itl_max_ample, itl_max_recompute, itl_max_swap [ms]
        copied_mib [MiB]
        extra_prefill_tokens [tokens]: Computed a second time, in the recompute run.
        tokens_per_s_recompute, tokens_per_s_swap [tokens/s]
    """
    deployment = deploy(model, gpu, max_num_batched_tokens=2048)
    load = list(Workload(num_requests, rate, Lengths(prompt, prompt), Lengths(output, output), seed=1))

    def run(blocks: int | None, swap_space: float = 0.0) -> Any:
        num_blocks = None if blocks is None else blocks + 1
        engine = make_engine(
            deployment, num_blocks=num_blocks, enable_prefix_caching=False, swap_space=swap_space
        )
        return simulate(engine, load)

    ample, recompute, swap = run(None), run(num_blocks), run(num_blocks, 64.0)
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

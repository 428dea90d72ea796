"""Occupancy of a GPU by kernels: residency on an SM, launches of a step, tiles of a mixture. Models, no measurement."""

from itertools import accumulate
from typing import Literal

from quizzes.experiments import BadArguments, Context, Result, arg, experiment
from quizzes.experiments.performance.roofline import floor_of, load_of_rows


@experiment("E27", "E24")
def occupancy(
    arch: Literal[80, 90] = 90,
    threads: int = arg(128, 32, 1024, multiple_of=32),
    registers: int = arg(128, 16, 255),
    shared_kib: int = arg(32, 0, 227),
    bytes_per_thread: int = arg(32, 1, 1024),
    gb_per_s: int = arg(3350, 100, 20_000),
    sms: int = arg(132, 1, 1024),
    latency_ns: int = arg(700, 100, 5000),
) -> Result:
    """Compute how many blocks of a kernel one SM holds, and whether their loads in flight can fill the memory.

    Residency by the limits of sm_80 and sm_90 (`kernels/compile_report.py`). Little's law: memory of `gb_per_s` with a
    latency of `latency_ns` needs bandwidth x latency / SMs bytes in flight on each SM. The latency is an assumption.

    Returns: One SM; each thread has `bytes_per_thread` of loads in flight.
        blocks [blocks]; warps [warps]
        occupancy [share]: Resident warps over the SM's 64 warp slots.
        limited_by: blocks, warps, registers or shared memory.
        in_flight [B]: Loads in flight of all resident threads.
        needed [B]: In flight per SM to use the full bandwidth.
        bandwidth_share [share]: in_flight over needed, at most 1.
    """
    from kernels.compile_report import ARCHITECTURES
    from kernels.compile_report import occupancy as resident

    most = ARCHITECTURES[arch].max_shared_bytes_per_block // 1024
    if shared_kib > most:
        raise BadArguments(f"a block of sm_{arch} has at most {most} KiB of shared memory, not {shared_kib}")
    residency = resident(arch, threads, registers, shared_kib * 1024)
    in_flight = residency.blocks * threads * bytes_per_thread
    needed = gb_per_s * latency_ns / sms
    return Result(
        blocks=residency.blocks,
        warps=residency.warps,
        occupancy=residency.ratio,
        limited_by=residency.limited_by,
        in_flight=in_flight,
        needed=needed,
        bandwidth_share=min(1.0, in_flight / needed),
    )


@experiment("E60", "E65")
def launches(
    model: str = "qwen2.5-0.5b",
    hardware: str = "h100",
    rows: int = arg(1, 1, 1024),
    tokens_per_row: int = arg(1, 1, 100_000),
    context: int = arg(500, 0, 1_000_000),
    kernels_per_layer: int = arg(10, 1, 100),
    launch_us: float = arg(5.0, 0, 100),
    kernel_us: float = arg(1.5, 0, 100),
) -> Result:
    """Compare a step launched kernel by kernel with the same step replayed from a CUDA graph.

    The host issues a launch every `launch_us`; a kernel starts when it is launched and the one before it has ended. The
    work of the step is the roofline at the datasheet's rates, spread evenly over its kernels; each takes `kernel_us`
    more for its start and tail, in a graph as well. Launch and kernel time are assumptions.

    Returns: One step. The embedding, the last norm, the head and the sampler count as 4 more kernels.
        kernels [kernels]
        work_ms [ms]: Bytes and arithmetic at the datasheet's rates.
        host_ms [ms]: The host's time to launch all kernels.
        graph_ms [ms]: Replayed: the kernels without waiting for the host.
        eager_ms [ms]: Launched one by one.
        idle [share]: Share of the eager step in which the device waits for the host.
        speedup [x]: eager_ms over graph_ms.
    """
    floor = floor_of(model, hardware, "bfloat16", rows=rows, length=context + tokens_per_row)
    count = floor.deployment.model.num_layers * kernels_per_layer + 4
    work = 1e6 * floor.cost.seconds(load_of_rows(rows, tokens_per_row, context))
    per_kernel = work / count + kernel_us
    launched = device = 0.0
    for _ in range(count):
        launched += launch_us
        device = max(launched, device) + per_kernel
    busy = count * per_kernel
    return Result(
        kernels=count,
        work_ms=work / 1e3,
        host_ms=count * launch_us / 1e3,
        graph_ms=busy / 1e3,
        eager_ms=device / 1e3,
        idle=1 - busy / device,
        speedup=device / busy,
    )


@experiment("E24")
def moe_tiles(
    ctx: Context,
    num_experts: int = arg(128, 2, 512),
    top_k: int = arg(8, 1, 16),
    tokens: int = arg(64, 1, 4096),
    block_m: int = arg(16, 1, 256),
    skew: float = arg(0.0, 0, 3),
) -> Result:
    """Route tokens to experts at random and count the row tiles of the grouped matrix product.

    Rows are sorted by expert and cut into tiles of `block_m` that never cross experts (`kernels/triton_ops/moe.py`);
    vLLM pads each expert to a multiple instead. skew 0: uniform; otherwise expert i has the weight 1 / (i + 1) ** skew.

    Returns: One layer, one step.
        visits [rows]: tokens x top_k: rows that are multiplied.
        used_experts [experts]: Experts with at least one row: their weights are read.
        largest [rows]: Rows of the busiest expert.
        tiles [tiles]: Row tiles of all experts.
        tile_rows [rows]: Rows that tiles have room for: what the tensor cores multiply.
        useful [share]: visits over tile_rows.
        rows_per_expert [rows]: Mean rows of a used expert.
    """
    if top_k > num_experts:
        raise BadArguments(f"a token cannot choose {top_k} of {num_experts} experts")
    weights = [1 / (expert + 1) ** skew for expert in range(num_experts)]
    totals = list(accumulate(weights))
    rows = [0] * num_experts
    for _ in range(tokens):
        chosen: set[int] = set()
        while len(chosen) < top_k:
            chosen.update(ctx.rng.choices(range(num_experts), cum_weights=totals))
        for expert in chosen:
            rows[expert] += 1
    tiles = sum(-(-count // block_m) for count in rows)
    used = sum(count > 0 for count in rows)
    visits = tokens * top_k
    return Result(
        visits=visits,
        used_experts=used,
        largest=max(rows),
        tiles=tiles,
        tile_rows=tiles * block_m,
        useful=visits / (tiles * block_m),
        rows_per_expert=visits / used,
    )

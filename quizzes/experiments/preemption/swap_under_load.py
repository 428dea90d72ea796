from typing import Any

from engine.sim.run import make_engine, simulate
from engine.sim.workload import Lengths, Workload
from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.simulated import deploy


@experiment("E18")
def swap_under_load(
    ctx: Context,
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

    Returns:
        Times of all requests; with ample memory for comparison.
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

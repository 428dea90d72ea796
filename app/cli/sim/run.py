"""`prep sim run`: one replica under load."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli import terminal
from app.cli.sim.options import (
    BlockSize,
    Dtype,
    Gpu,
    Json,
    KvCacheDtype,
    MaxModelLen,
    MaxNumBatchedTokens,
    MaxNumSeqs,
    Model,
    Pp,
    Seed,
    Tp,
    Utilization,
    describe,
    gib,
    make_deployment,
    read_work,
    seconds,
)

if TYPE_CHECKING:
    from engine.sim.cost import Rates
    from engine.sim.memory import Deployment
    from engine.sim.report import RunReport
    from engine.sim.speculation import Speculation
    from engine.sim.workload import SimRequest

Rate = Annotated[float, typer.Option(help="Requests per second; inf: all at once.")]
NumRequests = Annotated[int, typer.Option(min=1, help="Requests to simulate.")]
Prompt = Annotated[str, typer.Option(help="Prompt tokens: 1000, 500-1500 or lognormal:MEAN:SIGMA.")]
Output = Annotated[str, typer.Option(help="Generated tokens, in the same forms.")]
Arrivals = Annotated[str, typer.Option(help="poisson, gamma (bursty, see --cv) or constant.")]
Cv = Annotated[float, typer.Option(help="Gamma: standard deviation over mean of the gaps.")]
NumPrefixes = Annotated[
    int, typer.Option(min=0, help="Different prompt beginnings that requests share; 0: none.")
]
PrefixLen = Annotated[int, typer.Option(min=0, help="Tokens of a shared beginning.")]
Requests = Annotated[
    Path | None,
    typer.Option(
        "--requests",
        help='Instead of drawn ones: a file of lines {"arrival": 0.5, "prompt": 800, "output": 100}.',
    ),
]
PrefixCaching = Annotated[bool, typer.Option("--enable-prefix-caching/--no-enable-prefix-caching")]


def run(
    model: Model = "llama-3-8b",
    gpu: Gpu = "h100",
    tp: Tp = 1,
    pp: Pp = 1,
    rate: Rate = 4.0,
    num_requests: NumRequests = 1000,
    prompt: Prompt = "1000",
    output: Output = "200",
    arrivals: Arrivals = "poisson",
    cv: Cv = 2.0,
    num_prefixes: NumPrefixes = 0,
    prefix_len: PrefixLen = 0,
    requests: Requests = None,
    dtype: Dtype = None,
    kv_cache_dtype: KvCacheDtype = "auto",
    gpu_memory_utilization: Utilization = 0.92,
    block_size: BlockSize = 16,
    num_gpu_blocks_override: Annotated[
        int | None, typer.Option(min=2, help="KV blocks, instead of what the memory allows.")
    ] = None,
    max_model_len: MaxModelLen = None,
    max_num_seqs: MaxNumSeqs = None,
    max_num_batched_tokens: MaxNumBatchedTokens = None,
    long_prefill_token_threshold: Annotated[
        int, typer.Option(min=0, help="Most tokens of one prompt in one step; 0: the budget.")
    ] = 0,
    scheduling_policy: Annotated[str, typer.Option(help="fcfs or priority (from --requests).")] = "fcfs",
    enable_prefix_caching: PrefixCaching = True,
    swap_space: Annotated[
        float,
        typer.Option(help="GiB of host memory per GPU: preempted requests are swapped, not recomputed."),
    ] = 0.0,
    kv_offloading_size: Annotated[
        float, typer.Option(help="GiB of host memory per GPU for cached blocks that are evicted.")
    ] = 0.0,
    spec_tokens: Annotated[int, typer.Option(min=0, help="Speculative tokens per step; 0: off.")] = 0,
    acceptance: Annotated[float, typer.Option(help="Probability that a draft is right.")] = 0.7,
    draft_model: Annotated[
        str | None, typer.Option(help="Whose steps the drafts cost; none: n-grams, which cost nothing.")
    ] = None,
    fast_forward: Annotated[
        bool,
        typer.Option(
            "--fast-forward/--no-fast-forward", help="Skip decode steps that are certain; same result."
        ),
    ] = True,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Serve a workload on one replica, in virtual time: TTFT, ITL, throughput, preemptions, KV use.

    The scheduler and the KV manager are the engine's own; the time of a step is a roofline of the model's shape
    on the hardware's figures (engine/sim/cost.py). GPUs: datasheet times typical efficiencies, so compare settings
    rather than trust a millisecond. --gpu cpu uses what prep sim calibrate measured here.

    \b
    Examples:
      prep sim run --model llama-3-70b --gpu h100 --tp 8 --rate 4 --prompt 1000 --output 200
      prep sim run --gpu l4 --dtype fp8 --rate 2 --prompt lognormal:800:0.8 --output 50-400
      prep sim run --rate 20 --num-prefixes 10 --prefix-len 800 --num-requests 5000 --json
    """
    from engine.sim.memory import plan_memory
    from engine.sim.run import make_engine, scheduler_config, simulate
    from engine.sim.workload import Workload

    prompts, outputs, listed, longest = read_work(prompt, output, requests)
    deployment = make_deployment(
        model=model,
        gpu=gpu,
        tp=tp,
        pp=pp,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        gpu_memory_utilization=gpu_memory_utilization,
        block_size=block_size,
        max_model_len=max_model_len,
        longest=longest,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
    )
    plan = plan_memory(deployment)
    engine = make_engine(
        deployment,
        plan=plan,
        rates=calibrated_rates(deployment),
        num_blocks=num_gpu_blocks_override,
        enable_prefix_caching=enable_prefix_caching,
        scheduler=scheduler_config(deployment, scheduling_policy, long_prefill_token_threshold),
        fast_forward=fast_forward,
        swap_space=swap_space,
        kv_offloading_size=kv_offloading_size,
        speculation=_speculation(deployment, spec_tokens, acceptance, draft_model, seed),
    )
    work: list[SimRequest] | Workload = listed or Workload(
        num_requests,
        rate,
        prompts,
        outputs,
        arrivals,  # type: ignore[arg-type]
        cv,
        num_prefixes,
        prefix_len,
        deployment.max_model_len,
        seed,
    )
    total = len(listed) if listed else num_requests
    began = time.perf_counter()
    with telling(total) as tell:
        report = simulate(engine, work, tell)
    took = time.perf_counter() - began
    report.config = {
        "model": deployment.model.name,
        "gpu": deployment.hardware.name,
        "tp": tp,
        "pp": pp,
        "dtype": deployment.dtype,
        "kv_cache_dtype": kv_cache_dtype,
        "rate": rate if listed is None and rate != float("inf") else None,
        "prompt": str(prompts) if listed is None else str(requests),
        "output": str(outputs) if listed is None else str(requests),
        "max_num_seqs": engine.scheduler.config.max_num_seqs,
        "max_num_batched_tokens": deployment.max_num_batched_tokens,
        "max_model_len": deployment.max_model_len,
        "num_gpu_blocks": len(engine.scheduler.kv.pool.blocks),
        "seed": seed,
        "wall_seconds": took,
    }
    if json:
        terminal.print_json(asdict(report))
    else:
        terminal.out().print(f"[bold]{describe(deployment)}[/]", soft_wrap=True)
        show_report(report, f"KV cache of {gib(plan.kv_budget)} per device")
        terminal.next_command("prep sim kv --model " + deployment.model.name, "where the memory goes")
    if report.num_rejected:
        terminal.err().print(
            f"[yellow]{report.num_rejected:,} requests were refused, as the engine would:[/] {report.rejected_because}",
            soft_wrap=True,
        )


def _speculation(
    deployment: Deployment, k: int, acceptance: float, draft_model: str | None, seed: int
) -> Speculation | None:
    if not k:
        if draft_model:
            raise terminal.Problem("--draft-model needs --spec-tokens", next_step="--spec-tokens 3")
        return None
    from dataclasses import replace

    from engine.sim.cost import CostModel
    from engine.sim.models import get_model
    from engine.sim.speculation import Speculation

    draft = CostModel(replace(deployment, model=get_model(draft_model), pp=1)) if draft_model else None
    return Speculation(k, acceptance, draft, seed)


def calibrated_rates(deployment: Deployment) -> Rates | None:
    """On this CPU: what was measured, if it was. None: datasheet and efficiencies."""
    from engine.sim.calibration import rates_on_cpu

    found = rates_on_cpu(deployment.model) if deployment.hardware.is_cpu else None
    return found.rates if found else None


@contextmanager
def telling(total: int) -> Iterator[Callable[[int], None]]:
    """Progress on stderr once a run takes more than two seconds, where somebody watches."""
    console = terminal.err()
    if not terminal.is_live(console):
        yield lambda number: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    began = time.perf_counter()
    columns = (TextColumn("[dim]requests"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=console, transient=True)
    task = progress.add_task("", total=total)
    started = False

    def tell(number: int) -> None:
        nonlocal started
        if not started and time.perf_counter() - began > 2:
            progress.start()
            started = True
        if started:
            progress.update(task, completed=number)

    try:
        yield tell
    finally:
        if started:
            progress.stop()


def show_report(report: RunReport, kv_title: str) -> None:
    """The figures of a run as two tables."""
    table = terminal.table("", "mean", "p50", "p90", "p99", "max")
    names = {
        "ttft": "TTFT  time to first token",
        "itl": "ITL   between tokens",
        "tpot": "TPOT  per output token",
        "queue": "queue wait",
        "e2e": "whole request",
    }
    for name, words in names.items():
        spread = getattr(report, name)
        if spread is not None:
            values = (spread.mean, spread.p50, spread.p90, spread.p99, spread.max)
            table.add_row(words, *(seconds(value) for value in values))
    terminal.show(
        f"{report.num_finished:,} of {report.num_requests:,} requests in {seconds(report.seconds)} of virtual time",
        table,
    )
    table = terminal.table("", "", "", left=("",))
    table.show_header = False
    table.add_row("throughput", f"{report.output_tokens_per_s:,.0f}", "output tokens/s")
    table.add_row("", f"{report.requests_per_s:,.2f}", "requests/s")
    table.add_row("steps", f"{report.num_steps:,}", f"of {seconds(report.mean_step_seconds)} on average")
    table.add_row("busy", f"{report.busy_share:.1%}", "of the time")
    table.add_row(
        "running", f"{report.mean_running:,.1f}", f"requests on average, at most {report.peak_running:,}"
    )
    table.add_row("waiting", f"{report.mean_waiting:,.1f}", f"at most {report.peak_waiting:,}")
    table.add_row(
        "KV in use",
        f"{report.mean_kv_cache_usage:.1%}",
        f"at most {report.peak_kv_cache_usage:.1%}; {kv_title}",
    )
    table.add_row("preemptions", f"{report.num_preemptions:,}", "")
    if report.host_bytes:
        table.add_row("host copies", gib(report.host_bytes), "of KV per device, out and in")
    table.add_row("prefix hits", f"{report.prefix_cache_hit_rate:.1%}", "of prompt tokens")
    terminal.out().print(table)

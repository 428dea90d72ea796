"""`prep sim run`: one replica under load."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import Annotated

from app.cli import terminal
from app.cli.options import JsonOption, option, option_groups
from app.cli.sim.options import DeploymentOptions, WorkOptions, describe, rates_of
from engine.sim.calibration import calibrated_rates
from engine.sim.cost import CostModel
from engine.sim.engine import SimEngine
from engine.sim.memory import Deployment, MemoryPlan, plan_memory
from engine.sim.models import get_model
from engine.sim.report import RunReport
from engine.sim.run import make_engine, scheduler_config, simulate
from engine.sim.speculation import Speculation
from prep_common.text import counted, duration, gib


@dataclass(frozen=True)
class ReplicaOptions:
    """Other settings of an engine."""

    num_gpu_blocks_override: Annotated[int | None, option("KV blocks; by default as many as fit.", min=2)] = (
        None
    )
    long_prefill_token_threshold: Annotated[
        int, option("Maximum tokens of one prompt in one step; 0: the budget.", min=0)
    ] = 0
    scheduling_policy: Annotated[str, option("fcfs or priority (from --requests).")] = "fcfs"
    enable_prefix_caching: Annotated[
        bool, option("", "--enable-prefix-caching/--no-enable-prefix-caching")
    ] = True
    swap_space: Annotated[
        float, option("GiB of host memory per GPU: preempted requests are swapped, not recomputed.")
    ] = 0.0
    kv_offloading_size: Annotated[
        float, option("GiB of host memory per GPU for cached blocks that are evicted.")
    ] = 0.0
    fast_forward: Annotated[
        bool, option("Apply certain decode steps at once; same result.", "--fast-forward/--no-fast-forward")
    ] = True

    def engine(self, deployment: Deployment, plan: MemoryPlan, speculation: Speculation | None) -> SimEngine:
        settings = dict(vars(self))
        scheduler = scheduler_config(
            deployment, settings.pop("scheduling_policy"), settings.pop("long_prefill_token_threshold")
        )
        num_blocks, rates = settings.pop("num_gpu_blocks_override"), rates_of(deployment)
        return make_engine(
            deployment,
            plan=plan,
            rates=rates,
            num_blocks=num_blocks,
            scheduler=scheduler,
            speculation=speculation,
            **settings,
        )


@dataclass(frozen=True)
class SpeculationOptions:
    """Speculative decoding of a replica."""

    spec_tokens: Annotated[int, option("Speculative tokens per step; 0: off.", min=0)] = 0
    acceptance: Annotated[float, option("Probability that a draft is accepted.")] = 0.7
    draft_model: Annotated[
        str | None, option("Model that drafts, for its cost; without it, n-grams, which are free.")
    ] = None

    def speculation(self, deployment: Deployment, seed: int) -> Speculation | None:
        if not self.spec_tokens:
            if self.draft_model:
                raise terminal.Problem("--draft-model needs --spec-tokens", "--spec-tokens 3")
            return None
        model = self.draft_model
        drafting = replace(deployment, model=get_model(model), pp=1) if model else None
        draft = CostModel(drafting, calibrated_rates(drafting)) if drafting else None
        rates = calibrated_rates(deployment)
        lookup_s = rates.lookup_overhead if rates else 0.0
        return Speculation(self.spec_tokens, self.acceptance, draft, seed, lookup_s=lookup_s)


@option_groups
def run(
    options: DeploymentOptions,
    traffic: WorkOptions,
    replica: ReplicaOptions,
    drafts: SpeculationOptions,
    json: JsonOption = False,
) -> None:
    """Simulate one replica under load: TTFT, ITL, throughput, preemptions, KV use.

    The scheduler and the KV manager are the engine's; the time of a step is a roofline of the model's shape
    on the hardware's figures (engine/sim/cost.py). GPUs: datasheet times typical efficiencies, so use the figures
    to compare settings. --gpu cpu uses the rates from prep sim calibrate.

    \b
    Examples:
      prep sim run --model llama-3-70b --gpu h100 --tp 8 --rate 4 --prompt 1000
      prep sim run --gpu l4 --dtype fp8 --prompt lognormal:800:0.8 --output 50-400
      prep sim run --num-prefixes 10 --prefix-len 800 --num-requests 5000 --json
    """
    deployment = options.deployment(traffic.longest)
    work = traffic.work(deployment)
    plan = plan_memory(deployment)
    engine = replica.engine(deployment, plan, drafts.speculation(deployment, traffic.seed))
    began = time.perf_counter()
    with terminal.progress(traffic.total, "requests") as advance:
        report = simulate(engine, work, lambda number: advance(done=number))
    took = time.perf_counter() - began
    listed = str(traffic.requests) if traffic.listed else None
    report.config = {
        "model": deployment.model.name,
        "gpu": deployment.hardware.name,
        **terminal.pick(deployment, "tp pp dtype kv_cache_dtype"),
        "rate": traffic.rate if listed is None and traffic.rate != float("inf") else None,
        "prompt": listed or traffic.prompt,
        "output": listed or traffic.output,
        "max_num_seqs": engine.scheduler.config.max_num_seqs,
        **terminal.pick(deployment, "max_num_batched_tokens max_model_len"),
        "num_gpu_blocks": len(engine.scheduler.kv.pool.blocks),
        "seed": traffic.seed,
        "wall_seconds": took,
    }
    if json:
        terminal.print_json(asdict(report))
    else:
        terminal.say(f"[bold]{describe(deployment)}[/]")
        show_report(report, f"KV cache of {gib(plan.kv_budget)} per device")
        terminal.next_command(f"prep sim kv {options.flags}", "where the memory goes")
    if report.num_rejected:
        terminal.note(
            f"[yellow]{counted(report.num_rejected, 'request')} rejected:[/] {report.rejected_because}"
        )


def show_report(report: RunReport, kv_title: str) -> None:
    """Print the figures of a run as two tables."""
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
            table.add_row(words, *(duration(value) for value in values))
    done = f"{report.num_finished:,} of {report.num_requests:,} requests"
    terminal.show(f"{done} in {duration(report.seconds)} of virtual time", table)
    usage = f"at most {report.peak_kv_cache_usage:.1%}; {kv_title}"
    rows = [
        ("throughput", f"{report.output_tokens_per_s:,.0f}", "output tokens/s"),
        ("", f"{report.requests_per_s:,.2f}", "requests/s"),
        ("steps", f"{report.num_steps:,}", f"of {duration(report.mean_step_seconds)} on average"),
        ("busy", f"{report.busy_share:.1%}", "of the time"),
        ("running", f"{report.mean_running:,.1f}", f"requests on average, at most {report.peak_running:,}"),
        (
            "waiting",
            f"{report.mean_waiting:,.1f}",
            f"after a step is scheduled, at most {report.peak_waiting:,}",
        ),
        ("KV in use", f"{report.mean_kv_cache_usage:.1%}", usage),
        ("preemptions", f"{report.num_preemptions:,}", ""),
        ("host copies", gib(report.host_bytes), "of KV per device, out and in"),
        ("prefix hits", f"{report.prefix_cache_hit_rate:.1%}", "of prompt tokens"),
    ]
    if not report.host_bytes:
        del rows[-2]
    table = terminal.table("", "", "", left=("",), rows=rows)
    table.show_header = False
    terminal.out().print(table)

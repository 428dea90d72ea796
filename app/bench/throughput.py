"""Measure tokens per second with full batches, and the time of a step by part.

The work runs twice: once unmodified, for the speed, and once with clocks inside the step, for the shares. The
matrix products are then timed alone, without the rest of the model: the lower bound of a step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from app.bench.gemm import GemmFloor
from app.bench.models import bench_model
from app.bench.step_profile import profile_steps
from app.bench.timing import Tell
from app.bench.workload import Lengths, TimedStep, add_requests, timed_steps, warm_up
from engine.config import EngineArgs
from engine.engine_core import EngineCore
from engine.exec.uniproc import worker_of


@dataclass
class ThroughputReport:
    """One run. Shares are of the time spent in steps."""

    model: str
    device: str
    dtype: str
    threads: int
    num_prompts: int
    input_len: str
    output_len: str
    steps: int = 0
    finished: int = 0
    prompt_tokens: int = 0
    """Computed; a recomputation after a preemption counts again."""
    output_tokens: int = 0
    seconds: float = 0.0
    requests_per_s: float = 0.0
    output_tokens_per_s: float = 0.0
    total_tokens_per_s: float = 0.0
    mean_batch: float = 0.0
    schedule_share: float = 0.0
    execute_share: float = 0.0
    update_share: float = 0.0
    step_shares: dict[str, float] = field(default_factory=dict)
    """Part (`step_profile.PARTS`) -> share, from the second run; empty on a GPU."""
    gemm_seconds: float = 0.0
    gemm_floor_share: float = 0.0
    """Time of the matrix products alone at the same sizes, measured right after the run."""
    interrupted: bool = False


def measure(
    tell: Tell,
    model: str,
    engine: dict[str, Any],
    *,
    num_prompts: int,
    input_len: Lengths,
    output_len: Lengths,
) -> ThroughputReport:
    """Run the benchmark; Ctrl-C ends it early with what was measured so far."""
    tell(f"loading {model}")
    with bench_model(model, engine) as (folder, arguments):
        core = EngineCore.from_args(EngineArgs.create(model=folder, **arguments))
    report = ThroughputReport(
        model=model,
        device=str(worker_of(core).device),
        dtype=core.config.model.dtype,
        threads=torch.get_num_threads(),
        num_prompts=num_prompts,
        input_len=str(input_len),
        output_len=str(output_len),
    )
    steps: list[TimedStep] = []
    try:
        tell("warming up")
        warm_up(core, input_len)
        add_requests(core, num_prompts, input_len, output_len, label="throughput")
        for step in timed_steps(core):
            steps.append(step)
            report.finished += sum(output.finish_reason is not None for output in step.outputs)
            tell(f"step {len(steps)}, {report.finished} of {num_prompts} requests finished")
        _summarise(report, steps)
        if worker_of(core).device.type == "cpu":
            tell("the same again, with clocks inside the step")
            add_requests(core, num_prompts, input_len, output_len, label="profile")
            with profile_steps(core) as profile:
                while core.has_unfinished():
                    core.step()
            report.step_shares = profile.shares()
        tell("timing the matrix products alone")
        report.gemm_seconds = GemmFloor(core).seconds((step.num_tokens, step.num_sampled) for step in steps)
        report.gemm_floor_share = report.gemm_seconds / report.seconds
    except KeyboardInterrupt:
        report.interrupted = True
        _summarise(report, steps)
    core.shutdown()
    return report


def _summarise(report: ThroughputReport, steps: list[TimedStep]) -> None:
    if not steps:
        return
    report.steps = len(steps)
    report.seconds = sum(step.total for step in steps)
    report.output_tokens = sum(step.num_sampled for step in steps)
    total_tokens = sum(step.num_tokens for step in steps)
    report.prompt_tokens = sum(step.num_prefill_tokens for step in steps)
    report.requests_per_s = report.finished / report.seconds
    report.output_tokens_per_s = report.output_tokens / report.seconds
    report.total_tokens_per_s = total_tokens / report.seconds
    report.mean_batch = sum(step.num_rows for step in steps) / len(steps)
    report.schedule_share = sum(step.schedule for step in steps) / report.seconds
    report.execute_share = sum(step.execute for step in steps) / report.seconds
    report.update_share = sum(step.update for step in steps) / report.seconds

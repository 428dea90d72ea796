"""Measure tokens per second with full batches, and the time of a step by part.

The work runs twice: once unmodified, for the speed, and once with clocks inside the step, for the shares. The
matrix products are then timed alone, without the rest of the model: the lower bound of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from app.bench.models import bench_model
from app.bench.step_profile import profile_steps
from app.bench.timing import Tell
from app.bench.workload import Lengths, TimedStep, add_requests, require_room, timed_steps, warm_up
from engine.config import EngineArgs
from engine.engine_core import EngineCore
from engine.exec.uniproc import worker_of
from engine.layers.embedding import ParallelLMHead
from engine.layers.linear import GatedLinear, Linear
from kernels.bench.timing import interleaved

MAX_SIZES = 12
SECONDS_PER_SIZE = 0.25


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
    require_room(core, input_len, output_len)
    device, threads = str(worker_of(core).device), torch.get_num_threads()
    what = (num_prompts, str(input_len), str(output_len))
    report = ThroughputReport(model, device, core.config.model.dtype, threads, *what)
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
        report.gemm_seconds = gemm_floor(core, steps)
        report.gemm_floor_share = report.gemm_seconds / report.seconds
    except KeyboardInterrupt:
        report.interrupted = True
        _summarise(report, steps)
    core.shutdown()
    return report


def _summarise(report: ThroughputReport, steps: list[TimedStep]) -> None:
    if not steps:
        return

    def total(part: str) -> float:
        return sum(getattr(step, part) for step in steps)

    report.steps, report.seconds = len(steps), total("total")
    report.prompt_tokens, report.output_tokens = int(total("num_prefill_tokens")), int(total("num_sampled"))
    report.requests_per_s = report.finished / report.seconds
    report.output_tokens_per_s = report.output_tokens / report.seconds
    report.total_tokens_per_s = total("num_tokens") / report.seconds
    report.mean_batch = total("num_rows") / len(steps)
    for part in ("schedule", "execute", "update"):
        setattr(report, f"{part}_share", total(part) / report.seconds)


def gemm_floor(core: EngineCore, steps: list[TimedStep]) -> float:
    """Return the seconds of the matrix products of these steps alone, the lower bound of their time.

    The products are the model's own layers with their own weights, one after the other, so that they leave the
    processor's caches as the real run does. All else (attention, norms, sampling, Python) is left out.
    """
    worker = worker_of(core)
    dtype = getattr(torch, core.config.model.dtype)
    modules = [module for module in cast(nn.Module, worker.model).modules() if isinstance(module, Linear)]
    heads = [module for module in modules if isinstance(module, ParallelLMHead)]
    layers = [module for module in modules if not isinstance(module, ParallelLMHead)]
    total = 0.0
    groups: tuple[tuple[Sequence[Linear], list[int]], ...] = (
        (layers, [step.num_tokens for step in steps]),
        (heads, [step.num_sampled for step in steps]),
    )
    for products, sizes in groups:
        distinct = sorted({size for size in sizes if size > 0})
        if distinct and products:  # measured at `MAX_SIZES` sizes and interpolated between
            spaced = np.linspace(0, len(distinct) - 1, MAX_SIZES).round().astype(int)
            chosen = sorted({distinct[index] for index in spaced})
            measured = [_products_seconds(products, size, dtype, worker.device) for size in chosen]
            total += float(np.where(np.asarray(sizes) > 0, np.interp(sizes, chosen, measured), 0.0).sum())
    return total


@torch.inference_mode()
def _products_seconds(
    modules: Sequence[Linear], size: int, dtype: torch.dtype, device: torch.device
) -> float:
    """Return the median seconds of all products at one batch size."""
    widths = {module.in_features for module in modules}
    inputs = {width: torch.randn(size, width, dtype=dtype, device=device) for width in widths}

    def call(_: int) -> None:
        for module in modules:
            x = inputs[module.in_features]
            module.activated(x) if isinstance(module, GatedLinear) else module(x)

    return interleaved({"": call}, device.type, seconds=SECONDS_PER_SIZE, graphs=False)[""].median

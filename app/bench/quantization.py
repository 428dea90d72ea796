"""Measure the speed-up of a decode step with fewer bits: several engines on one machine in turn.

All hold the same random weights and run in one process. Each round sends each engine the same request and compares
the medians of decode steps over all rounds, so a busy moment of the machine affects all alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from torch import nn

from app.bench.models import bench_model
from app.bench.timing import Spread, Tell, partial_results, spread
from app.bench.workload import Lengths, add_requests, timed_steps
from engine.config import EngineArgs
from engine.engine_core import EngineCore
from engine.exec.uniproc import worker_of
from engine.quant.size import weight_bytes

FLOAT = "float"
HEAD = "+head"
SCHEMES = (FLOAT, "int8", "rtn", "rtn" + HEAD)


@dataclass(frozen=True)
class SchemeSpeed:
    """One scheme; times in milliseconds."""

    scheme: str
    decode_step: Spread
    speedup: float
    """Median decode step of the float engine over this one's."""
    weight_megabytes: float
    bits_per_weight: float
    """Mean over all matrices, output head included."""
    replays: bool
    """Whether decode steps are replayed from recordings."""


@dataclass
class QuantizationReport:
    model: str
    batch_size: int
    rounds: int
    schemes: list[SchemeSpeed] = field(default_factory=list)
    interrupted: bool = False


def measure(
    tell: Tell,
    model: str,
    engine: dict[str, Any],
    *,
    schemes: tuple[str, ...] = SCHEMES,
    batch_size: int = 1,
    output_len: int = 32,
    rounds: int = 5,
) -> QuantizationReport:
    """Measure `schemes`: float first, then values of `quantization`; "+head" quantises the output head too."""
    report = QuantizationReport(model, batch_size, rounds)
    cores: dict[str, EngineCore] = {}
    times: dict[str, list[float]] = {scheme: [] for scheme in schemes}
    with partial_results(report):
        for scheme in schemes:
            tell(f"loading {model} as {scheme}")
            with bench_model(model, engine | _arguments(scheme)) as (name, arguments):
                cores[scheme] = EngineCore.from_args(EngineArgs.create(model=name, **arguments))
            _decode_steps(cores[scheme], batch_size, 4, "warm-up")
        for number in range(rounds):
            for scheme, core in cores.items():
                tell(f"round {number + 1} of {rounds}: {scheme}")
                times[scheme] += _decode_steps(core, batch_size, output_len, f"round-{number}")
    medians = {scheme: spread(seconds).p50 for scheme, seconds in times.items() if seconds}
    for scheme, median in medians.items():
        worker = worker_of(cores[scheme])
        num_bytes, num_weights = weight_bytes(cast(nn.Module, worker.model))
        speed = spread(times[scheme]), medians[schemes[0]] / median
        sizes = num_bytes / 1e6, 8 * num_bytes / num_weights
        report.schemes.append(SchemeSpeed(scheme, *speed, *sizes, worker.runner.replays))
    for core in cores.values():
        core.shutdown()
    return report


def _arguments(scheme: str) -> dict[str, Any]:
    if scheme == FLOAT:
        return {}
    if not scheme.endswith(HEAD):
        return {"quantization": scheme}
    config = {"quant_method": "online", "scheme": scheme.removesuffix(HEAD), "lm_head": True}
    return {"hf_overrides": {"quantization_config": config}}


def _decode_steps(core: EngineCore, batch_size: int, output_len: int, label: str) -> list[float]:
    """Return the seconds of every step but the first, which computes the prompt."""
    add_requests(core, batch_size, Lengths(16, 16), Lengths(output_len, output_len), label=label)
    return [step.total for step in timed_steps(core)][1:]

"""Targets of the kernels, compared with a run."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.bench.run import BenchReport, Measurement

DECODE_CPU = "decode 32 x 512"
DECODE_GPU = "decode 64 x 4096"
PREFILL_GPU = "prefill 8192"


@dataclass(frozen=True, slots=True)
class Bar:
    """One aim: at least `least`, as a ratio."""

    what: str
    least: float
    measured: float

    @property
    def met(self) -> bool:
        return self.measured >= self.least


def bars(report: BenchReport) -> list[Bar]:
    """Those that the run says something about."""
    found = (_decode_bandwidth, _decode_rival, _prefill) if report.device == "cuda" else (_decode_on_cpu,)
    return [bar for each in found for bar in each(report)]


def _best(report: BenchReport, ending: str) -> list[Measurement]:
    """Our fastest implementation on each attention workload with this ending of the name."""
    ours = [each for each in report.measurements if each.ours and each.op == "paged_attention"]
    names = dict.fromkeys(each.workload for each in ours if each.workload.endswith(ending))
    return [
        min((each for each in ours if each.workload == name), key=lambda each: each.seconds) for name in names
    ]


def _decode_on_cpu(report: BenchReport) -> list[Bar]:
    result = []
    for best in _best(report, DECODE_CPU):
        if rival := report.speedup(best):
            result.append(Bar(f"{best.workload}: times as fast as {rival[1]}", 3.0, rival[0]))
    return result


def _decode_bandwidth(report: BenchReport) -> list[Bar]:
    return [
        Bar(
            f"{best.workload}: share of the copy bandwidth",
            0.8,
            best.work.bytes / best.seconds / report.limits.copy_bandwidth,
        )
        for best in _best(report, DECODE_GPU)
    ]


def _decode_rival(report: BenchReport) -> list[Bar]:
    result = []
    for best in _best(report, DECODE_GPU):
        if rival := report.speedup(best):
            result.append(Bar(f"{best.workload}: times as fast as {rival[1]}", 1.0, rival[0]))
    return result


def _prefill(report: BenchReport) -> list[Bar]:
    rate = report.limits.flops["bfloat16"]
    return [
        Bar(
            f"{best.workload}, causal: share of the bf16 GEMM rate",
            0.5,
            best.work.flops / best.seconds / rate,
        )
        for best in _best(report, PREFILL_GPU)
    ]

"""A report as JSON and as a section of RESULTS.md, with the kernels' targets. Figures never get there by hand."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernels.bench.run import BenchReport, Measurement

RESULTS = Path(__file__).resolve().parents[1] / "RESULTS.md"
HEAD = """# Measured

Written by `prep kernels bench --all --write` and, on a GPU, by `prep kernels gpu`: one section for each kind of
device. Time is a median; the limit is the shortest time that the bandwidth and the GEMM rate of the same run allow
(`bench/roofline.py`); share = limit / time. More than 100 %: data was still in a cache.
"""
TITLES = {"cpu": "CPU", "cuda": "GPU"}
DECODE = {"cpu": "decode 32 x 512", "cuda": "decode 64 x 4096"}
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
    """Return the aims that the run says something about."""
    on_gpu = report.device == "cuda"
    aims = []
    for best in _best(report, DECODE[report.device]):
        if on_gpu:
            share = best.work.bytes / best.seconds / report.limits.copy_bandwidth
            aims.append(Bar(f"{best.workload}: share of the copy bandwidth", 0.8, share))
        if rival := report.speedup(best):
            what = f"{best.workload}: times as fast as {rival[1]}"
            aims.append(Bar(what, 1.0 if on_gpu else 3.0, rival[0]))
    for best in _best(report, PREFILL_GPU) if on_gpu else ():
        share = best.work.flops / best.seconds / report.limits.flops["bfloat16"]
        aims.append(Bar(f"{best.workload}, causal: share of the bf16 GEMM rate", 0.5, share))
    return aims


def _best(report: BenchReport, ending: str) -> list[Measurement]:
    """Return our fastest implementation on each attention workload with this ending of the name."""
    fastest = report.best_of_each()
    return [
        measurement
        for measurement in fastest
        if measurement.op == "paged_attention" and measurement.workload.endswith(ending)
    ]


def as_dict(report: BenchReport) -> dict[str, Any]:
    """Plain values for `--json`: every figure, with what was derived from it."""
    return {
        "device": report.device,
        "machine": asdict(report.machine),
        "limits": asdict(report.limits),
        "measurements": [_measurement(report, measurement) for measurement in report.measurements],
        "bars": [{**asdict(bar), "met": bar.met} for bar in bars(report)],
        "answers": [asdict(answer) for answer in report.answers],
        "omitted": [asdict(omission) for omission in report.omitted],
        "interrupted": report.interrupted,
        "seconds": report.seconds,
    }


def _measurement(report: BenchReport, measurement: Measurement) -> dict[str, Any]:
    limit, rival = report.limit(measurement), report.speedup(measurement)
    return {
        **{key: value for key, value in asdict(measurement).items() if key != "work"},
        "bytes": measurement.work.bytes,
        "flops": measurement.work.flops,
        "limit_seconds": limit.seconds,
        "bound": limit.bound,
        "share": report.share(measurement),
        "times_faster": rival and rival[0],
        "than": rival and rival[1],
    }


def write(report: BenchReport, path: Path) -> None:
    """Replace this device's section of the file, leave the other as it is."""
    old = path.read_text() if path.exists() else ""
    sections = {device: _section_of(old, device) for device in TITLES}
    sections[report.device] = section(report)
    path.write_text("\n".join([HEAD, *(text for text in sections.values() if text)]))


def _section_of(text: str, device: str) -> str:
    begin, end = _markers(device)
    if begin not in text or end not in text:
        return ""
    return begin + text.partition(begin)[2].partition(end)[0] + end + "\n"


def _markers(device: str) -> tuple[str, str]:
    return f"<!-- {device}: begin -->", f"<!-- {device}: end -->"


def section(report: BenchReport) -> str:
    """Hardware, versions, limits, aims, answers and the table, between two markers."""
    begin, end = _markers(report.device)
    parts = [begin, f"## {TITLES[report.device]}", "", f"{machine_line(report)}; {report.seconds:.0f} s.", ""]
    parts += [f"Limits: {limits_line(report)}.", ""]
    if aims := bars(report):
        parts += [*markdown_bars(aims), ""]
    for answer in report.answers:
        parts += [
            f"### {answer.question}",
            "",
            markdown_row(answer.headings),
            markdown_row(["---"] * len(answer.headings)),
        ]
        parts += [markdown_row(row) for row in answer.rows] + ["", answer.conclusion, ""]
    parts += [markdown_row(COLUMNS), "|---|---|---|---:|---:|---|---:|---|"]
    parts += [markdown_row(cells(report, measurement)) for measurement in report.measurements]
    if report.omitted:
        parts += ["", "Not measured:", ""]
        parts += [
            f"- {omission.op}, {omission.workload}, {omission.candidate}: {omission.reason}"
            for omission in report.omitted
        ]
    return "\n".join([*parts, end, ""])


COLUMNS = ["operation", "workload", "implementation", "time", "limit", "bound", "share", "times as fast as"]


def cells(report: BenchReport, measurement: Measurement) -> list[str]:
    """A line of the table; the screen shows the same."""
    limit, rival = report.limit(measurement), report.speedup(measurement)
    return [
        measurement.op,
        measurement.workload,
        measurement.candidate,
        microseconds(measurement.seconds),
        microseconds(limit.seconds),
        limit.bound,
        f"{100 * report.share(measurement):.0f} %",
        "" if rival is None else f"{rival[0]:.2f} {rival[1]}",
    ]


def microseconds(seconds: float) -> str:
    value = seconds * 1e6
    return f"{value:,.1f} us" if value < 100 else f"{value:,.0f} us"


def machine_line(report: BenchReport) -> str:
    machine = report.machine
    versions = {name: getattr(machine, name) for name in ("torch", "triton", "driver", "python")}
    told = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    return f"{machine.hardware}; {told}; commit {machine.commit}; {machine.day}"


def limits_line(report: BenchReport) -> str:
    limits = report.limits
    rates = ", ".join(f"{name} {rate / 1e12:,.2f}" for name, rate in limits.flops.items())
    link = f", host to GPU {limits.link_bandwidth / 1e9:,.0f}" if limits.link_bandwidth else ""
    one = limits.read_bandwidth_one_thread
    alone = f" ({one / 1e9:,.0f} GB/s by one thread)" if one else ""
    return (
        f"copy {limits.copy_bandwidth / 1e9:,.0f} GB/s, read {limits.read_bandwidth / 1e9:,.0f} GB/s{alone}{link}; "
        f"matrix products in TFLOP/s: {rates}"
    )


def markdown_bars(bars: list[Bar]) -> list[str]:
    """Return the lines of a Markdown table of aims."""
    rows = ["| aim | at least | measured | |", "|---|---:|---:|---|"]
    for bar in bars:
        verdict = "met" if bar.met else "**not met**"
        rows.append(markdown_row([bar.what, f"{bar.least:.2f}", f"{bar.measured:.2f}", verdict]))
    return rows


def markdown_row(values: list[str]) -> str:
    """Return a line of a Markdown table."""
    return "| " + " | ".join(values) + " |"

"""The report of `prep bench peers`: what the machine allows, what each engine reaches, and the aims.

    limit = output tokens / max( FLOPs / GEMM rate,  steps * bytes of the weights / read bandwidth )

FLOPs are those of the matrices alone, 2 for each weight and token; the head multiplies only tokens that are sampled.
Attention, norms and sampling are left out, so no engine reaches the limit with full batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from app.bench.peers import ENGINES, ONE_THREAD, OURS, READ, WORKLOADS, Key, PeersReport, Workload
from kernels.bench.limits import Limits
from kernels.bench.results import Bar, markdown_bars, markdown_row

RESULTS = Path(__file__).resolve().parents[2] / "tests" / "peers" / "RESULTS.md"
BITS = {"fp32": 16.0, "bf16": 16.0, "int8": 8.0, "int4": 4.25}
"""Bits per weight that must be read. The numbers of the checkpoints are bf16, so fp32 need not read more."""
RATES = {"fp32": ("float32",), "bf16": ("bfloat16",), "int8": ("int8",), "int4": ("int8", "bfloat16")}
"""Types in which the products may be computed."""
TITLES = {
    OURS: "prep",
    ONE_THREAD: "prep, 1 thread",
    "vllm": "vLLM, one process",
    "vllm-processes": "vLLM as it comes",
}


def limit_tokens_per_s(report: PeersReport, workload: Workload, precision: str) -> float | None:
    """Return the output tokens per second that the measured limits allow; None without limits or weights."""
    limits, weights = report.limits, report.num_weights.get(workload.model)
    if limits is None or weights is None:
        return None
    work = workload.draw(report.vocab_sizes[workload.model], "0")
    tokens, steps = sum(work.max_tokens), max(work.max_tokens)
    flops = 2.0 * weights * (sum(map(len, work.prompts)) + tokens)
    compute = flops / gemm_rate(limits, precision)
    memory = steps * weights * BITS[precision] / 8 / limits.read_bandwidth
    return tokens / max(compute, memory)


def gemm_rate(limits: Limits, precision: str) -> float:
    return max(limits.flops.get(name, 0.0) for name in RATES[precision])


def aims(report: PeersReport) -> list[Bar]:
    """Return the aims that the run says something about."""
    bars = []
    for what, least, ours, theirs in _ratios():
        ratios = [ratio for key in theirs if (ratio := report.ratio(ours, key)) is not None]
        if len(ratios) == len(theirs):
            bars.append(Bar(what, least, min(ratios)))
    if (cell := report.cell(*READ)) and cell.read_shares:
        what = "386m-1 in bf16: bandwidth of a decode step, of torch's on the same memory"
        bars.append(Bar(what, 0.9, median(cell.read_shares)))
    return bars


def _ratios() -> Iterator[tuple[str, float, Key, list[Key]]]:
    """Yield (what, least ratio, measurement, measurements of which the best is compared)."""

    def against(workload: str, precision: str, engine: str) -> tuple[Key, list[Key]]:
        return (workload, precision, OURS), [(workload, precision, engine)]

    for workload, least in (("shop-128", 1.7), ("386m-32", 1.6)):
        what = f"{workload}: bf16 of fp32"
        yield what, least, (workload, "bf16", OURS), [(workload, "fp32", OURS)]
    yield "shop-128 in bf16: of vLLM as it comes", 3.5, *against("shop-128", "bf16", "vllm-processes")
    yield "shop-128 in bf16: of vLLM in one process", 2.0, *against("shop-128", "bf16", "vllm")
    both = [("386m-32", "bf16", "vllm"), ("386m-32", "bf16", "vllm-processes")]
    yield "386m-32 in bf16: of vLLM's best mode", 2.0, ("386m-32", "bf16", OURS), both
    yield "386m-32 in bf16: of llama.cpp", 1.0, *against("386m-32", "bf16", "llama.cpp")
    for precision in ("bf16", "int8", "int4"):
        yield f"386m-1 in {precision}: of llama.cpp", 1.0, *against("386m-1", precision, "llama.cpp")
    for precision in ("fp32", "bf16"):
        for engine in (ONE_THREAD, "vllm", "vllm-processes"):
            what = f"shop-128 beside a busy program, {precision}: of {TITLES[engine]}"
            yield what, 1.0, *against("shop-128-busy", precision, engine)


def as_dict(report: PeersReport) -> dict[str, Any]:
    """Return plain values for `--json`: every round, with what was derived from it."""
    value = asdict(report)
    for raw, cell in zip(value["cells"], report.cells, strict=True):
        raw["rounds"]["median"] = cell.rounds.median if cell.rounds.figures else None
    value["limits_tokens_per_s"] = {
        f"{workload.name} {precision}": limit_tokens_per_s(report, workload, precision)
        for workload, precision in _rows(report)
    }
    value["aims"] = [{**asdict(aim), "met": aim.met} for aim in aims(report)]
    return value


def write(report: PeersReport, path: Path = RESULTS) -> None:
    """Replace the file."""
    path.write_text(markdown(report))


def markdown(report: PeersReport) -> str:
    """Return machine, versions, limits, the table, the aims, and what was not measured."""
    parts = ["# Beside other engines, measured", "", _head(report), ""]
    headings, rows = table(report)
    parts += [markdown_row(headings), markdown_row(["---", "---", *["---:"] * (len(headings) - 2)])]
    parts += [markdown_row(row) for row in rows]
    parts += [
        "",
        "Requests start together; prompts are random token ids, and all outputs have a fixed length:",
        "",
    ]
    for workload in dict.fromkeys(workload for workload, _ in _rows(report)):
        beside = f", beside {workload.beside} busy program" if workload.beside else ""
        beside += f", {workload.repeat * report.num_rounds} rounds" if workload.repeat > 1 else ""
        parts.append(
            f"* {workload.name}: {workload.model}, {workload.num_prompts} x {workload.input_len} tokens in, "
            f"{workload.output_len} out{beside}"
        )
    if bars := aims(report):
        parts += ["", "Aims, as ratios:", "", *markdown_bars(bars)]
    if notes := problems(report):
        parts += ["", "Not measured:", "", *("* " + " ".join(note.split()) for note in notes)]
    return "\n".join([*parts, ""])


def _head(report: PeersReport) -> str:
    machine = report.machine
    return "\n".join(
        [
            "Written by `prep bench peers --write`. Output tokens per second, median of "
            f"{report.num_rounds} interleaved rounds, or",
            "of as many as the list of workloads names; in parentheses how many times as fast prep is, the median over",
            "rounds. The limit is what the GEMM rate and the read bandwidth of the same run allow",
            "(`app/bench/peers_results.py`).",
            "",
            f"{machine.hardware}; python {machine.python}; commit {machine.commit}; {machine.day}; "
            f"{report.seconds:.0f} s.",
            f"{versions_line(report)}.",
            f"Limits: {limits_line(report)}.",
        ]
    )


def versions_line(report: PeersReport) -> str:
    """Return the engines with their versions."""
    versions: dict[str, None] = {}
    for cell in report.cells:
        if cell.rounds.engine:
            torch = f" (torch {cell.rounds.torch})" if cell.rounds.torch else ""
            versions[cell.rounds.engine + torch] = None
    return f"{', '.join(versions)}; {report.threads} threads each"


def limits_line(report: PeersReport) -> str:
    """Return memory bandwidth by threads and GEMM rates."""
    limits = report.limits
    if limits is None:
        return "not measured"
    one = limits.read_bandwidth_one_thread
    reading = f"read {limits.read_bandwidth / 1e9:.1f} GB/s with {report.threads} threads"
    reading += f" and {one / 1e9:.1f} GB/s with one" if one else ""
    names = {"float32": "fp32", "bfloat16": "bf16", "int8": "int8"}
    rates = ", ".join(
        f"{names[name]} {rate / 1e12:.2f}" for name, rate in limits.flops.items() if name in names
    )
    return f"{reading}, copy {limits.copy_bandwidth / 1e9:.1f} GB/s; matrix products in TFLOP/s: {rates}"


def table(report: PeersReport) -> tuple[list[str], list[list[str]]]:
    """Return headings, and a row for each workload and precision."""
    measured = dict.fromkeys(cell.engine for cell in report.cells)
    columns = [
        name for name in (OURS, ONE_THREAD, *ENGINES[1:]) if name in measured or name in report.missing
    ]
    rows = []
    for workload, precision in _rows(report):
        limit = limit_tokens_per_s(report, workload, precision)
        row = [workload.name, precision, "" if limit is None else figure(limit)]
        for name in columns:
            row.append(_entry(report, (workload.name, precision, name), limit))
        rows.append(row)
    return ["workload", "precision", "limit", *(TITLES.get(name, name) for name in columns)], rows


def _entry(report: PeersReport, key: Key, limit: float | None) -> str:
    """Return tokens per second; of ours with the share of the limit, of others with how many times as fast ours is."""
    value = report.median(key)
    if value is None:
        return ""
    if key[2] == OURS:
        return figure(value) + (f" ({value / limit:.0%})" if limit else "")
    ratio = report.ratio((*key[:2], OURS), key)
    return figure(value) + (f" ({ratio:.2f} x)" if ratio else "")


def figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def problems(report: PeersReport) -> list[str]:
    """Return what was not measured and why, with the next step."""
    places: dict[tuple[str, str], list[str]] = {}
    for cell in report.cells:
        if cell.error:
            places.setdefault((cell.engine, cell.error), []).append(f"{cell.workload} in {cell.precision}")
    missing = list(report.missing.items())
    missing += [(", ".join([engine, *where]), why) for (engine, why), where in places.items()]
    return [f"{what}: {why}" for what, why in missing]


def _rows(report: PeersReport) -> list[tuple[Workload, str]]:
    """Return the workloads and precisions that were measured, in the order of `WORKLOADS`."""
    keys = dict.fromkeys((cell.workload, cell.precision) for cell in report.cells if cell.rounds.figures)
    ordered = sorted(keys, key=lambda key: list(WORKLOADS).index(key[0]))
    return [(WORKLOADS[name], precision) for name, precision in ordered]

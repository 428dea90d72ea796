"""The view Roofline of the page Capacity: the model's operations under the limits of the GPU, moved by two sliders."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from pathlib import Path

import streamlit as st

from app.debugger.capacity.figure import Capacity, ms
from app.debugger.capacity.roofline import Operation, Roofline, first_compute_bound, operations
from app.debugger.capacity.scenario import Scenario
from app.debugger.charts.plot import Axis, Curve, Mark, Rule, plot
from prep_common.text import join_and

BATCHES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
CONTEXTS = [128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072]
COLOURS = {
    "QKV": "--request-0",
    "Attention": "--request-1",
    "Output": "--request-2",
    "MLP": "--request-3",
    "Experts": "--request-3",
    "LM head": "--request-5",
}
_STYLE = Path(__file__).with_name("roofline.css")


def show(capacity: Capacity, batch: int | None, context: int | None) -> tuple[int, int]:
    """Draw, and return batch and context. batch, context: those of a link; None: those of the plan."""
    scenario = capacity.scenario
    if capacity.problem:
        st.error(
            f"{capacity.problem.partition(' What would fit')[0]} The roofline shows each operation as if it did."
        )
    of_plan = _of_plan(capacity)
    batch, context = _sliders(scenario, (batch or of_plan[0], context or of_plan[1]))
    roofline, work = Roofline(scenario.deployment), operations(scenario.deployment, batch, context)
    _chart(roofline, work, batch, context)
    st.html(
        f"<style>{_STYLE.read_text('utf-8')}</style>{_words(roofline, work, context)}{_table(roofline, work)}"
    )
    return batch, context


def _of_plan(capacity: Capacity) -> tuple[int, int]:
    """Return the plan's mean batch and context."""
    running = capacity.state.running if capacity.state else 1.0
    return max(1, round(running)), capacity.scenario.prompt + capacity.scenario.output // 2


def _sliders(scenario: Scenario, start: tuple[int, int]) -> tuple[int, int]:
    most = scenario.deployment.model.max_position_embeddings
    batch = st.session_state.setdefault("roofline batch", start[0])
    context = st.session_state.setdefault("roofline context", start[1])
    if context > most:
        context = st.session_state["roofline context"] = most
    left, right = st.columns(2)
    with left:
        st.select_slider(
            "Batch: requests that decode",
            sorted({*BATCHES, batch}),
            key="roofline batch",
            format_func="{:,}".format,
        )
    with right:
        lengths = sorted({context, most, *(length for length in CONTEXTS if length <= most)})
        st.select_slider(
            "Context: tokens of each", lengths, key="roofline context", format_func="{:,}".format
        )
    return st.session_state["roofline batch"], st.session_state["roofline context"]


def _chart(roofline: Roofline, work: Sequence[Operation], batch: int, context: int) -> None:
    hardware, types = roofline.hardware, roofline.types
    low = 0.5 * min(1.0, *(op.intensity for op in work))
    high = 3 * max(4 * hardware.ridge(types[0]), *(op.intensity for op in work))
    peak = max(hardware.peak(name) for name in types)
    curves = [
        Curve(
            f"datasheet, {name}",
            _corners(low, high, hardware.ridge(name), partial(roofline.attainable, compute=name)),
            "--blue" if name == types[0] else "--quiet",
        )
        for name in types
    ]
    rates = roofline.rates
    origin = "measured on this machine" if roofline.measured else "as planned"
    curves.append(
        Curve(
            origin,
            _corners(low, high, rates.flops / rates.bytes_per_s, roofline.planned),
            "--orange",
            "dashed",
        )
    )
    ridge = hardware.ridge(types[0])
    plot(
        f"{hardware.name}: attainable FLOP/s against arithmetic intensity",
        Axis("arithmetic intensity", "FLOP/byte", low, high, log=True),
        Axis("attainable", "FLOP/s", low * hardware.bytes_per_s * 0.5, peak * 2.5, log=True),
        note=f"{peak / 1e12:,.0f} TFLOP/s, {hardware.bytes_per_s / 1e9:,.0f} GB/s, ridge {ridge:,.0f}; "
        f"dashed: {origin}; ● decode ◆ prefill",
        curves=curves,
        rules=[Rule("x", ridge, "memory-bound|compute-bound")],
        marks=[
            Mark(
                op.label, op.intensity, roofline.attainable(op.intensity, op.compute), _explain(roofline, op),
                COLOURS[op.name], "circle" if op.phase == "decode" else "diamond",
            )
            for op in work
        ],
        height=350,
        key="capacity roofline",
        alt=f"Roofline of {hardware.name} with {len(work)} operations at batch {batch:,} and context {context:,}: "
        + "; ".join(f"{op.label} {roofline.bound(op)}-bound at {op.intensity:,.1f} FLOP/byte" for op in work),
    )  # fmt: skip


def _corners(
    low: float, high: float, ridge: float, attainable: Callable[[float], float]
) -> list[tuple[float, float]]:
    """Return the points of a roof: its ends and its ridge."""
    return [(at, attainable(at)) for at in (low, ridge, high)]


def _explain(roofline: Roofline, op: Operation) -> str:
    return (
        f"{_engineering(op.flops, 'FLOP')} = {op.flops_formula}\n"
        f"{_engineering(op.bytes, 'B')} = {op.bytes_formula}\n"
        f"intensity {op.intensity:,.1f} FLOP/byte: {roofline.bound(op)}-bound\n"
        f"at least {_time(roofline.least_seconds(op))} = max(FLOPs / peak, bytes / bandwidth)\n"
        f"planned {_time(roofline.planned_seconds(op))}"
    )


def _words(roofline: Roofline, work: Sequence[Operation], context: int) -> str:
    """Say what the picture shows."""
    said = []
    for phase in ("decode", "prefill"):
        names = [op.name for op in work if op.phase == phase and roofline.bound(op) == "compute"]
        what = f"{join_and(names)} compute-bound, the rest memory-bound" if names else "all memory-bound"
        said.append(f"{phase.capitalize()}: {what}.")
    first = first_compute_bound(roofline, context)
    mlp = next(op.name for op in work if op.name in ("MLP", "Experts"))
    if first is None:
        said.append(f"No batch up to 16,384 makes {mlp} compute-bound in decode.")
    else:
        said.append(
            f"In decode {mlp} turns compute-bound from a batch of {first:,}; attention does not move with the batch."
        )
    return f"<p class='roofline-words'>{escape(' '.join(said))}</p>"


def _table(roofline: Roofline, work: Sequence[Operation]) -> str:
    """The operations as rows, with the share of each in the time of its phase as a bar."""
    rows = []
    for phase in ("decode", "prefill"):
        of_phase = [op for op in work if op.phase == phase]
        whole = sum(map(roofline.planned_seconds, of_phase))
        for op in of_phase:
            planned = roofline.planned_seconds(op)
            colour, share = f"background:var({COLOURS[op.name]})", f"{100 * planned / whole:.1f}%"
            rows.append(
                f"<tr><th scope='row'><i class='{phase}' style='{colour}'></i>{op.label}</th>"
                f"<td>{_engineering(op.flops, 'FLOP')}</td><td>{_engineering(op.bytes, 'B')}</td>"
                f"<td>{op.intensity:,.1f}</td><td>{roofline.bound(op)}</td>"
                f"<td>{_time(roofline.least_seconds(op))}</td><td>{_time(planned)}</td>"
                f"<td class='bar'><u style='width:{share};{colour}'></u><span>{share}</span></td></tr>"
            )
    heads = ("FLOPs", "bytes", "FLOP/byte", "bound by", "datasheet", "planned", "share of the phase")
    columns = "".join(f"<th scope='col'>{head}</th>" for head in heads)
    head = f"<tr><th scope='col'>operation, all layers, one GPU</th>{columns}</tr>"
    return f"<div class='roofline'><table class='roofline'>{head}{''.join(rows)}</table></div>"


def _engineering(value: float, unit: str) -> str:
    power = min(4, max(0, int(math.log10(max(value, 1)) // 3)))
    return f"{value / 1000**power:,.3g} {' kMGT'[power].strip()}{unit}"


def _time(seconds: float) -> str:
    return f"{1e6 * seconds:,.1f} µs" if seconds < 1e-3 else ms(seconds)

"""The view Plan of the page Capacity: memory, latencies against load, remedies, figures, check by simulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from math import isnan
from pathlib import Path
from typing import NamedTuple

import streamlit as st

from app.debugger.capacity.check import Check, compare, sensible_count
from app.debugger.capacity.figure import Capacity
from app.debugger.capacity.figure import show as shown
from app.debugger.capacity.figures import work_out
from app.debugger.capacity.load_curve import LoadCurves, load_curves
from app.debugger.capacity.memory_bar import bar
from app.debugger.capacity.remedies import Remedy, missed, remedies
from app.debugger.charts import mount
from app.debugger.charts.plot import Axis, Curve, Mark, Rule, plot
from app.debugger.page_frame import in_words
from prep_common.text import counted

HERE = Path(__file__).parent
_CHECK = "capacity check"
HEADLINES = ("per_mtok", "gpus", "ttft", "tpot", "utilisation", "running", "resident")


def show(capacity: Capacity, undo: Callable[[], None], apply: Callable[[Remedy], None]) -> None:
    """undo: shows a button that takes back the last remedy; apply: called with the chosen one."""
    if capacity.problem:
        st.error(capacity.problem.partition(" What would fit")[0])
    else:
        st.html(_headline(capacity))
    st.html(f"<style>{_css('memory_bar.css')}</style>{bar(capacity)}")
    if not capacity.problem:
        _verdicts(capacity)
    undo()
    _remedies(capacity, apply)
    if not capacity.problem:
        _against_load(capacity)
    formula, run = st.columns([1.15, 1], gap="medium")
    with formula:
        st.markdown("**By formula** · open a line for its formula, numbers and limits")
        _tree(capacity)
    with run:
        st.markdown("**Check by simulation** · the real scheduler, virtual time")
        if capacity.problem:
            st.caption("Nothing to simulate: the model does not fit.")
        else:
            _simulation(capacity)


def _verdicts(capacity: Capacity) -> None:
    good = [verdict for verdict in capacity.verdicts if "meets" in verdict]
    if good:
        st.caption(" ".join(good))
    for verdict in capacity.verdicts:
        if verdict not in good:
            st.warning(verdict)


def _remedies(capacity: Capacity, apply: Callable[[Remedy], None]) -> None:
    """Offer single changes as buttons, each with its effect by the same formulas beside it."""
    if not missed(capacity):
        return
    offered = remedies(capacity)
    if not offered:
        st.caption(
            "No single change of GPU, dtype, tensor parallel, replicas or max_model_len helps at the planned load."
        )
        return
    st.markdown(
        "**What helps** · each alone; the effect is computed by the same formulas, and a click applies it"
    )
    with st.container(key="capacity_remedies", gap="small"):
        for number, remedy in enumerate(offered):
            button, effect = st.columns([1, 2.6], gap="small", vertical_alignment="center")
            button.button(
                remedy.title,
                key=f"capacity remedy {number}",
                type="primary" if number == 0 and remedy.solves else "secondary",
                width="stretch",
                on_click=apply,
                args=(remedy,),
            )
            effect.caption(
                ("✓ " if remedy.solves else "not enough alone: ") + remedy.effect.replace("$", r"\$")
            )


def _against_load(capacity: Capacity) -> None:
    """Draw TTFT and TPOT against the load, with limit, plan and the rate from which queues grow."""
    curves, scenario, state = load_curves(capacity), capacity.scenario, capacity.state
    assert state is not None
    check: Check | None = st.session_state.get(_CHECK)
    run = None
    if check and check.report and replace(check.scenario, price=scenario.price) == scenario:
        run = check.report
    ttft = _Panel(
        "Time to first token", "TTFT", curves.ttft, scenario.ttft_ms, curves.within_ttft, 1000 * state.ttft
    )
    tpot = _Panel(
        "Time per output token", "TPOT", curves.tpot, scenario.tpot_ms, curves.within_tpot, 1000 * state.step
    )
    left, right = st.columns(2)
    with left:
        _panel(ttft, capacity, curves, run.ttft.mean if run and run.ttft else None)
    with right:
        _panel(tpot, capacity, curves, run.tpot.mean if run and run.tpot else None)


class _Panel(NamedTuple):
    """One chart of a latency against load, in milliseconds."""

    title: str
    name: str
    points: list[tuple[float, float]]
    limit: float
    within: float
    """The largest rate that meets the limit; 0: none."""
    value: float
    """At the plan's load."""


def _panel(panel: _Panel, capacity: Capacity, curves: LoadCurves, measured: float | None) -> None:
    """measured: the mean of the simulation, in seconds."""
    title, name, points, limit, within, value = panel
    rate, state = capacity.scenario.rate, capacity.state
    assert state is not None
    marks = []
    if state.is_stable:
        about = f"{name} {value:,.1f} ms at {rate:,.3g} requests/s; limit {limit:g} ms"
        marks.append(Mark(f"plan {rate:,.3g}/s", rate, value, about))
    if measured is not None:
        about = f"{name} {1000 * measured:,.1f} ms in the simulation below, on average"
        marks.append(Mark("simulated", rate, 1000 * measured, about, "--green", "diamond"))
    finite = [number for _, number in points]
    met = f"up to {within:,.3g}/s" if within else "at no load"
    plot(
        f"{title} against load",
        Axis("load of the service", "requests/s", 0, 1.22 * max(curves.most, rate)),
        Axis(name, "ms", 0, max(1.2 * limit, min(max(finite), 2.5 * limit))),
        note=f"mean, ms; limit met {met}",
        curves=[Curve(name, points)],
        rules=[
            Rule("y", limit, f"limit {limit:g} ms", "alarm", beyond=True),
            Rule("x", curves.most, f"full at {curves.most:,.3g}/s", beyond=True),
            Rule("x", rate, "" if marks else f"plan {rate:,.3g}/s", "solid"),
        ],
        marks=marks,
        key=f"capacity {name} against load",
        alt=f"{title} against requests per second: {finite[0]:,.1f} ms when idle, {finite[-1]:,.1f} ms just below the "
        f"maximum of {curves.most:,.3g} requests/s; the limit of {limit:g} ms is met {met}",
    )


def _headline(capacity: Capacity) -> str:
    cells = "".join(
        f"<div><b>{figure.shown()}</b><span>{figure.title}</span></div>"
        for name in HEADLINES
        if (figure := capacity.figures.get(name))
    )
    return f"<style>{_css('headline.css')}</style><div class='figures'>{cells}</div>"


def _tree(capacity: Capacity) -> None:
    figures = {
        name: {**asdict(figure), "shown": figure.shown(), "value": None}
        for name, figure in capacity.figures.items()
    }
    data = {"root": capacity.root, "figures": figures}
    mount("capacity_tree", HERE / "tree", data, "capacity tree", html="<div class='tree'></div>")
    if st.toggle("Show as table", key="capacity table"):
        rows = [
            {
                "figure": figure.title,
                "value": figure.shown(),
                "formula": figure.formula,
                "here": figure.filled,
                "leaves out": figure.leaves_out,
                "source": figure.source,
            }
            for figure in capacity.figures.values()
        ]
        st.dataframe(rows, hide_index=True, width="stretch")


def _css(name: str) -> str:
    return (HERE / name).read_text()


def _simulation(capacity: Capacity) -> None:
    state = capacity.state
    assert state is not None
    count = sensible_count(capacity)
    st.caption(
        f"One replica at {state.rate:,.3g} requests/s, {counted(count, 'request')}, the same lengths and the "
        "same cost of steps."
    )
    check: Check | None = st.session_state.get(_CHECK)
    if check is not None and check.is_running:
        _watch(check)
        return
    if st.button("Run the simulation", key="capacity run", type="primary"):
        st.session_state[_CHECK] = Check(capacity.scenario, state.rate, count).start()
        st.rerun()
    if check is not None:
        _outcome(capacity, check)


@st.fragment(run_every=0.3)
@in_words
def _watch(check: Check) -> None:
    st.progress(
        min(1.0, check.num_sent / check.num_requests),
        f"{check.num_sent:,} of {check.num_requests:,} requests",
    )
    if st.button("Cancel", key="capacity cancel"):
        check.cancel()
    if not check.is_running:
        st.rerun()


def _outcome(capacity: Capacity, check: Check) -> None:
    if check.error:
        st.error(f"The run ended with an error: {check.error}")
        return
    assert check.report is not None
    if replace(check.scenario, price=capacity.scenario.price) != capacity.scenario:
        st.info("These are the results for other inputs: run the simulation again.")
    if check.stopped_because:
        st.warning(
            f"The run stopped early, after {check.num_sent:,} of {check.num_requests:,} requests: "
            f"{check.stopped_because}. {check.report.num_finished:,} finished and count."
        )
    gaps = compare(work_out(check.scenario), check.report)
    if not gaps:
        st.caption("No request finished, so there is nothing to compare.")
        return
    rows = "".join(
        f"<tr><th scope='row'>{gap.title}</th><td>{shown(gap.formula, gap.unit)}</td>"
        f"<td>{shown(gap.run, gap.unit)}</td><td>{'' if isnan(gap.ratio) else f'{gap.ratio:.2f}'}</td></tr>"
        f"<tr class='why'><td colspan='4'>{gap.why}</td></tr>"
        for gap in gaps
    )
    st.html(
        f"<style>{_css('gaps.css')}</style><table "
        f"class='gaps'><caption>{counted(check.report.num_finished, 'request')} in "
        f"{check.report.seconds:,.1f} s of virtual time, {counted(check.report.num_steps, 'step')}</caption>"
        "<tr><th scope='col'></th><th scope='col'>formula</th><th scope='col'>run</th>"
        "<th scope='col'>run / formula</th></tr>"
        f"{rows}</table>"
    )

"""Page Capacity: the GPUs and costs for some traffic, by formula and by simulation, each number explained."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from math import isnan
from pathlib import Path
from typing import Any

import streamlit as st

from app.debugger import session
from app.debugger.capacity import scenario as scenarios
from app.debugger.capacity.check import Check, compare, sensible_count
from app.debugger.capacity.figure import Capacity
from app.debugger.capacity.figure import show as shown
from app.debugger.capacity.figures import work_out
from app.debugger.capacity.scenario import Scenario
from app.debugger.charts import mount
from app.debugger.page_frame import in_words
from engine.config import ConfigError
from engine.sim.hardware import hardware_names
from engine.sim.models import MODELS, get_model
from engine.sim.precision import PRECISIONS
from engine.sim.sizing import ASSUMED_PRICES

HERE = Path(__file__).resolve().parents[1] / "capacity"
_SCENARIO = "capacity scenario"
_CHECK = "capacity check"
_WIDGET = "capacity:"
"""Prefix of the widget key of a field."""

MARKS: dict[str, list[Any]] = {
    "rate": [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000],
    "prompt": [50, 100, 200, 500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000],
    "output": [20, 50, 100, 200, 400, 600, 800, 1000, 2000, 4000],
    "ttft_ms": [50.0, 100.0, 200.0, 300.0, 500.0, 1000.0, 2000.0, 5000.0],
    "tpot_ms": [5.0, 10.0, 15.0, 20.0, 30.0, 50.0, 80.0, 100.0, 200.0],
    "replicas": [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128],
}
"""The marks of each slider."""
HEADLINES = ("per_mtok", "gpus", "ttft", "tpot", "utilisation", "running", "resident")


def show() -> None:
    st.title("Capacity")
    try:
        before = st.session_state.get(_SCENARIO) or Scenario.parse(dict(st.query_params))
    except ConfigError as error:
        st.error(f"The link is not valid: {error}. The page shows the defaults.")
        before = Scenario()
    inputs, numbers = st.columns([1, 2.6], gap="medium")
    with inputs:
        scenario = _inputs(before)
    st.session_state[_SCENARIO] = scenario
    session.add_to_url(scenario.as_query())
    with numbers:
        try:
            found = work_out(scenario)
        except ConfigError as error:
            st.error(str(error))
            return
        _results(found)


def _inputs(before: Scenario) -> Scenario:
    for name, value in asdict(before).items():
        st.session_state.setdefault(_WIDGET + name, value)
    _select("Model", "model", MODELS)
    heads = get_model(_value("model")).num_heads
    left, right = st.columns(2)
    with left:
        _select("GPU", "gpu", hardware_names(), on_change=_follow_price)
        _select("Weights in", "dtype", PRECISIONS)
    with right:
        _select("Tensor parallel (GPUs)", "tp", [size for size in (1, 2, 4, 8, 16) if heads % size == 0])
        _select("KV cache in", "kv_cache_dtype", ["auto", "bfloat16", "fp8", "int8_per_token_head"])
    st.caption("Traffic of the whole service (Poisson), and limits on means")
    _slide("Requests per second", "rate")
    left, right = st.columns(2)
    with left:
        _slide("Prompt tokens", "prompt")
        _share(
            "Common prefix (share)",
            "prefix_share",
            0.0,
            0.99,
            0.01,
            "Share of every prompt that is a common prefix.",
        )
        _slide("TTFT limit (ms)", "ttft_ms")
    with right:
        _slide("Output tokens", "output")
        few = not _value("prefix_share")
        st.number_input("Different prefixes", 1, 1000, key=_WIDGET + "num_prefixes", disabled=few)
        _slide("TPOT limit (ms)", "tpot_ms")
    left, right = st.columns(2)
    with left:
        _slide("Replicas", "replicas", lambda count: f"{count:,}" if count else "as needed")
        about = "An assumption, not a quoted price: enter your own."
        st.number_input("$ per GPU and hour", 0.0, 1e4, step=0.1, key=_WIDGET + "price", help=about)
    with right:
        about = "Share of a replica's maximum request rate. Queues need the rest."
        _share("Planned load (share)", "headroom", 0.1, 1.0, 0.05, about)
    scenario = Scenario(**{name: _value(name) for name in asdict(before)})
    _keeping(scenario)
    return scenario


def _value(name: str) -> Any:
    return st.session_state[_WIDGET + name]


def _share(label: str, name: str, least: float, most: float, step: float, about: str) -> None:
    st.slider(label, least, most, step=step, key=_WIDGET + name, help=about)


def _select(label: str, name: str, options: Iterable[Any], **more: Any) -> None:
    choices = list(options)
    if (wanted := _value(name)) not in choices:
        st.session_state[_WIDGET + name] = choices[0]
        st.warning(f"{label}: {wanted} is not available here; using {choices[0]}.")
    st.selectbox(label, choices, key=_WIDGET + name, **more)


def _slide(label: str, name: str, write: Callable[[Any], str] = "{:,g}".format) -> None:
    """A slider over marks that also includes the value of a link or saved scenario."""
    st.select_slider(label, sorted({*MARKS[name], _value(name)}), key=_WIDGET + name, format_func=write)


def _follow_price() -> None:
    """Change the assumed price with the GPU; a price that the user entered stays."""
    if _value("price") in ASSUMED_PRICES.values():
        st.session_state[_WIDGET + "price"] = ASSUMED_PRICES[_value("gpu")]


def _keeping(scenario: Scenario) -> None:
    with st.expander("Save or open a scenario"):
        name = st.text_input("Name", key="capacity name", placeholder="chat on h100")
        if st.button("Save", disabled=not name):
            try:
                st.caption(f"Saved as {scenarios.save(scenario, name.strip())}.")
            except (ConfigError, OSError) as error:
                st.error(f"It was not saved: {error}")
        names = scenarios.saved()
        if names:
            st.selectbox("Saved", names, key="capacity saved")
            st.button("Open", on_click=_open)
        st.caption("The address of this page is a permalink to these inputs.")


def _open() -> None:
    try:
        opened = scenarios.load(st.session_state["capacity saved"])
    except ConfigError as error:
        st.session_state["capacity problem"] = str(error)
        return
    st.session_state[_SCENARIO] = opened
    for name, value in asdict(opened).items():
        st.session_state[_WIDGET + name] = value


def _results(found: Capacity) -> None:
    if problem := st.session_state.pop("capacity problem", None):
        st.error(problem)
    if found.problem:
        st.error(found.problem)
    else:
        st.html(_headline(found))
        for verdict in found.verdicts:
            (st.caption if "meets" in verdict else st.warning)(verdict)
    formula, run = st.columns([1.15, 1], gap="medium")
    with formula:
        st.markdown("**By formula** · open a line for its formula, numbers and limits")
        _tree(found)
    with run:
        st.markdown("**Check by simulation** · the real scheduler, virtual time")
        if found.problem:
            st.caption("Nothing to simulate: the model does not fit.")
        else:
            _simulation(found)


def _headline(found: Capacity) -> str:
    cells = "".join(
        f"<div><b>{figure.shown()}</b><span>{figure.title}</span></div>"
        for name in HEADLINES
        if (figure := found.figures.get(name))
    )
    return f"<style>{_css('headline.css')}</style><div class='figures'>{cells}</div>"


def _tree(found: Capacity) -> None:
    figures = {
        name: {**asdict(figure), "shown": figure.shown(), "value": None}
        for name, figure in found.figures.items()
    }
    data = {"root": found.root, "figures": figures}
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
            for figure in found.figures.values()
        ]
        st.dataframe(rows, hide_index=True, width="stretch")


def _css(name: str) -> str:
    return (HERE / name).read_text()


def _simulation(found: Capacity) -> None:
    state = found.state
    assert state is not None
    count = sensible_count(found)
    st.caption(
        f"One replica at {state.rate:,.3g} requests/s, {count:,} requests, the same lengths and the same cost of steps."
    )
    check: Check | None = st.session_state.get(_CHECK)
    if check is not None and check.is_running:
        _watch(check)
        return
    if st.button("Run the simulation", key="capacity run", type="primary"):
        st.session_state[_CHECK] = Check(found.scenario, state.rate, count).start()
        st.rerun()
    if check is not None:
        _outcome(found, check)


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


def _outcome(found: Capacity, check: Check) -> None:
    if check.error:
        st.error(f"The run ended with an error: {check.error}")
        return
    assert check.report is not None
    if replace(check.scenario, price=found.scenario.price) != found.scenario:
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
        f"<style>{_css('gaps.css')}</style><table class='gaps'><caption>{check.report.num_finished:,} requests in "
        f"{check.report.seconds:,.1f} s of virtual time, {check.report.num_steps:,} steps</caption>"
        "<tr><th scope='col'></th><th scope='col'>formula</th><th scope='col'>run</th>"
        "<th scope='col'>run / formula</th></tr>"
        f"{rows}</table>"
    )

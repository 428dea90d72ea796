"""Page Capacity: the GPUs and costs for some traffic, the roofline of the model, and a simulated fleet's router."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import streamlit as st

from app.debugger import session
from app.debugger.capacity import plan_view, roofline_view, router_view
from app.debugger.capacity import scenario as scenarios
from app.debugger.capacity.figures import work_out
from app.debugger.capacity.remedies import Remedy
from app.debugger.capacity.scenario import Scenario
from engine.config import ConfigError
from engine.sim.hardware import hardware_names
from engine.sim.models import MODELS, get_model
from engine.sim.precision import PRECISIONS
from engine.sim.sizing import ASSUMED_PRICES

PLAN, ROOFLINE, ROUTER = "Plan", "Roofline", "Router"
VIEWS = [PLAN, ROOFLINE, ROUTER]
_SCENARIO = "capacity scenario"
_UNDO = "capacity undo"
"""Session key: the remedies applied, each with the scenarios before and after it."""
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
LENGTHS = [0, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072]
"""Choices of max_model_len; 0: as needed."""


def show() -> None:
    try:
        before = st.session_state.get(_SCENARIO) or Scenario.parse(dict(st.query_params))
    except ConfigError as error:
        st.error(f"The link is not valid: {error}. The page shows the defaults.")
        before = Scenario()
    inputs, numbers = st.columns([1, 2.75], gap="medium")
    with inputs, st.container(key="capacity_inputs"):
        st.title("Capacity", anchor=False)
        scenario = _inputs(before)
    st.session_state[_SCENARIO] = scenario
    with numbers:
        if problem := st.session_state.pop("capacity problem", None):
            st.error(problem)
        try:
            capacity = work_out(scenario)
        except ConfigError as error:
            st.error(str(error))
            return
        view = _view()
        query = {} if view == PLAN else {"view": view.lower()}
        if view == ROOFLINE:
            batch, context = roofline_view.show(capacity, _linked("batch"), _linked("context"))
            query |= {"batch": str(batch), "context": str(context)}
        elif view == ROUTER:
            query |= router_view.show(capacity)
        else:
            plan_view.show(capacity, lambda: _undo_button(scenario), _apply)
    session.add_to_url(scenario.as_query() | query)


def _view() -> str:
    """The chosen view; at first that of a link."""
    linked = st.query_params.get("view", "").capitalize()
    st.session_state.setdefault("capacity view", linked if linked in VIEWS else PLAN)
    chosen = st.segmented_control(
        "View", VIEWS, key="capacity view", required=True, label_visibility="collapsed"
    )
    return chosen or PLAN


def _linked(name: str) -> int | None:
    """A number of a link; None if it is missing or not a number."""
    text = st.query_params.get(name, "")
    return int(text) if text.isdecimal() and len(text) <= 6 and int(text) else None


def _apply(remedy: Remedy) -> None:
    """Set the inputs to those of a remedy, and remember the way back."""
    before: Scenario = st.session_state[_SCENARIO]
    st.session_state.setdefault(_UNDO, []).append((remedy.title, before, remedy.scenario))
    _set(remedy.scenario)


def _undo_button(scenario: Scenario) -> None:
    """Offer to take back the last remedy, as long as nothing else has changed since."""
    applied = st.session_state.get(_UNDO, [])
    while applied and applied[-1][2] != scenario:
        applied.pop()
    if applied:
        st.button(
            f"Undo: {applied[-1][0]}", key="capacity undo button", icon=":material/undo:", on_click=_undo
        )


def _undo() -> None:
    _, before, _ = st.session_state[_UNDO].pop()
    _set(before)


def _set(scenario: Scenario) -> None:
    """Set the inputs, in a callback."""
    st.session_state[_SCENARIO] = scenario
    for name, value in asdict(scenario).items():
        st.session_state[_WIDGET + name] = value


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
        _select_length()
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


def _select_length() -> None:
    """Offer lengths of a sequence up to the model's context, and that of a link or saved scenario."""
    most = get_model(_value("model")).max_position_embeddings
    lengths = sorted({length for length in (*LENGTHS, most, _value("max_model_len")) if length <= most})
    about = "Longest sequence that the engine accepts. Memory must hold one of that length."
    write = lambda length: f"{length:,}" if length else "as needed"  # noqa: E731
    _select("max_model_len (tokens)", "max_model_len", lengths, format_func=write, help=about)


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
    _set(opened)

"""The latency panels of the page Metrics: distributions, limits, and the requests outside of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import streamlit as st

from app.debugger import session
from app.debugger.charts.plot import Axis, Curve, Mark, Rule, plot
from app.debugger.page_frame import brushed_range, plain
from app.debugger.runs import Run
from app.debugger.views.latency import (
    TITLES,
    Goodput,
    Kind,
    Latencies,
    Unit,
    distribution,
    first_limit,
    latencies,
    percentiles,
    within_limits,
)
from engine.trace.format import shown_name
from prep_common.text import counted, figure

MOST_MARKS = 60
"""Requests drawn as points; with more, the curves alone."""
MOST_NAMES = 24
MOST_LIMIT = 1e9
_STYLE = Path(__file__).resolve().parents[1] / "views" / "slo.css"


def show_latencies(run: Run, clock: bool) -> None:
    st.header("Latency of finished requests", anchor=False)
    span = brushed_range(run)
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="latency_bar"):
        unit: Unit = "steps"
        if clock:
            chosen = st.segmented_control(
                "Unit",
                ["ms", "steps"],
                key="latency_unit",
                default="steps" if st.query_params.get("unit") == "steps" else "ms",
                required=True,
                label_visibility="collapsed",
            )
            unit = "steps" if chosen == "steps" else "ms"
        times = latencies(run.index.requests, unit, span)
        st.caption(_counts(times, span), width="content")
    if not times.numbers:
        st.caption("No request has finished" + (" in the selected range." if span else " yet."))
        return
    charts, limits_column = st.columns([3, 1.15], gap="small")
    with limits_column:
        limits = _limits(run, times, unit)
        _link(times, limits, unit)
        good = within_limits(times, limits)
        _shares(good, len(times.numbers))
    with charts:
        for kind, column in zip(TITLES, st.columns(3, gap="small"), strict=True):
            with column:
                _distribution(run, times, kind, limits[kind], unit)
        _outside(run, good)


def _counts(times: Latencies, span: tuple[int, int] | None) -> str:
    text = counted(len(times.numbers), "request")
    if span:
        text += f" that finished in steps {span[0]:,} to {span[1]:,}"
    if times.left_out:
        text += f"; {times.left_out:,} more did not finish, and are not counted"
    return text


def _link(times: Latencies, limits: dict[Kind, float], unit: Unit) -> None:
    """Put limits that differ from the first ones into the page's address, with their unit."""
    changed = any(limits[kind] != first_limit(times.values[kind]) for kind in TITLES)
    if changed:
        session.add_to_url({"unit": unit, "limits": "-".join(f"{limit:g}" for limit in limits.values())})


def _linked_limits(unit: Unit) -> dict[Kind, float]:
    """The limits of a link; empty if it has none in this unit."""
    texts = st.query_params.get("limits", "").split("-")
    try:
        values = [float(text) for text in texts]
    except ValueError:
        return {}
    is_valid = len(values) == len(TITLES) and all(0 <= value <= MOST_LIMIT for value in values)
    return dict(zip(TITLES, values, strict=True)) if is_valid and st.query_params.get("unit") == unit else {}


def _limits(run: Run, times: Latencies, unit: Unit) -> dict[Kind, float]:
    """Let the user set a limit for each latency."""
    st.markdown(f"**Limits** ({unit}) and shares within")
    limits: dict[Kind, float] = {}
    linked = _linked_limits(unit)
    for kind, column in zip(TITLES, st.columns(3, gap="small"), strict=True):
        key = f"slo {run.run_id} {unit} {kind}"
        st.session_state.setdefault(key, linked.get(kind, first_limit(times.values[kind])))
        limits[kind] = column.number_input(f"{kind} ≤", 0.0, MOST_LIMIT, step=1.0, format="%.5g", key=key)
    return limits


def _shares(good: Goodput, count: int) -> None:
    rows = [(kind, number, "") for kind, number in good.within.items()]
    rows.append(("all limits", good.all, "all"))  # type: ignore[arg-type]
    lines = "".join(
        f"<div class='{style}'><b>{name}</b><i><u style='width:{100 * number / count:.2f}%'></u></i>"
        f"<span>{100 * number / count:.0f} % · {number:,} of {count:,}</span></div>"
        for name, number, style in rows
    )
    st.html(f"<style>{_STYLE.read_text('utf-8')}</style><div class='slo'>{lines}</div>")


def _distribution(run: Run, times: Latencies, kind: Kind, limit: float, unit: Unit) -> None:
    values = times.values[kind]
    points = distribution(values)
    if not points:
        st.caption(f"No request has a {kind}: each made one token.")
        return
    highest = float(np.nanmax(values))
    shown = percentiles(values)
    note = ", ".join(f"p{percent} {_short(value)}" for percent, value in shown.items()) + f" {unit}"
    picked = plot(
        TITLES[kind],
        Axis(kind, unit, 0, 1.08 * max(highest, limit)),
        Axis("share", "% of requests", 0, 122),
        note=note,
        curves=[Curve("at or below", points)],
        rules=[Rule("x", limit, f"limit {figure(limit)} {unit}", "alarm", beyond=True)],
        marks=_marks(run, times, kind, limit, unit) if len(values) <= MOST_MARKS else [],
        height=170,
        key=f"latency {kind}",
        alt=f"{TITLES[kind]} of {counted(len(values), 'request')}, share at or below each latency: {note}",
    )
    if picked is not None:
        _open(run, int(picked))


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _marks(run: Run, times: Latencies, kind: Kind, limit: float, unit: Unit) -> list[Mark]:
    """A point per request on the curve, in its colour; names of those outside the limit."""
    values, colours = times.values[kind], run.index.colours
    have = [index for index in np.argsort(values, kind="stable") if values[index] == values[index]]
    marks = []
    for rank, index in enumerate(have):
        number, value = times.numbers[index], float(values[index])
        name = shown_name(run.index.requests[number].request_id)
        is_outside = value > limit
        marks.append(
            Mark(
                name, value, 100.0 * (rank + 1) / len(have),
                f"{kind} {figure(value)} {unit}, {'outside' if is_outside else 'within'} the limit of {figure(limit)}\n"
                "click: open on the page Requests",
                f"--request-{colours[number]}", "hollow" if is_outside else "circle",
                label=_brief(name, 16) if is_outside else "", id=number,
            )
        )  # fmt: skip
    return marks


def _brief(name: str, most: int) -> str:
    """Return a name, or both of its ends: ids of one client often begin alike."""
    return name if len(name) <= most else f"{name[: most // 2]}…{name[-(most // 2 - 1) :]}"


def _outside(run: Run, good: Goodput) -> None:
    if not good.outside:
        st.caption("Every request is within all limits.")
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="slo_bar"):
        st.caption(f"Outside ({len(good.outside):,}):", width="content")
        for number, missed in good.outside[:MOST_NAMES]:
            name = run.index.requests[number].request_id
            help_text = f"Misses {', '.join(missed)}. Open on the page Requests"
            if st.button(plain(_brief(name, 32)), key=f"outside {number}", help=help_text):
                _open(run, number)
        if len(good.outside) > MOST_NAMES:
            st.caption(f"and {len(good.outside) - MOST_NAMES:,} more", width="content")


def _open(run: Run, number: int) -> None:
    """Open a request on the page Requests, at the step in which it ended."""
    request = run.index.requests[number]
    st.session_state["request_number"] = number
    session.go("requests", request=request.request_id, step=request.ended or 0)

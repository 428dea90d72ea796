"""Page Requests: when each request waited, prefilled, decoded or was preempted; details of one request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import NamedTuple

import pandas as pd
import streamlit as st

from app.debugger import session
from app.debugger.charts.lines import Chart, line_charts
from app.debugger.charts.rects import Rect, rect_chart
from app.debugger.colours import HERE_SWATCH, PASSED_OVER, PHASE_SWATCHES, WAITS, wait_swatch
from app.debugger.page_frame import (
    brushed_range,
    choose,
    heading,
    legend,
    plain,
    row_table,
    run_page,
    step_bar,
)
from app.debugger.pages.request_detail import show_request
from app.debugger.runs import Run
from app.debugger.views.phases import (
    MAX_ROWS,
    PHASES,
    Bar,
    Gantt,
    PhaseSpan,
    gantt,
    overlaps,
    phase_counts,
    phases,
    window,
)
from app.debugger.views.requests import RequestRow, has_clock, request_rows
from app.debugger.views.waits import MAX_STEPS, WORDS, Reasons, Wait, hits, reasons_in
from prep_common.text import counted

LONG = 600
"""Steps; the chart of a longer run shows a window."""
SHOW: dict[str, Callable[[RequestRow], bool]] = {
    "all": lambda row: True,
    "preempted": lambda row: row.preemptions > 0,
    "aborted": lambda row: row.finish == "abort",
    "unfinished": lambda row: row.finish in ("waiting", "running", "preempted", "arrived"),
    "prefix hit": lambda row: row.prefix_hit_tokens > 0,
}
SWATCHES = [
    (PHASE_SWATCHES["waiting"], "waiting"),
    (PHASE_SWATCHES["prefill"], "prefill: prompt or recomputation"),
    (PHASE_SWATCHES["decode"], "decode"),
    (PHASE_SWATCHES["preempted"], "preempted: waits to resume"),
    ("height:8px;width:8px;border-radius:4px;background:var(--text)", "prefix hit"),
    (HERE_SWATCH, "the current step"),
]
COLUMNS: dict[str, tuple[str, str | None, str]] = {
    "request": ("request", None, ""),
    "arrived": ("arrived, step", None, "Before this step"),
    "queue_steps": ("queue, steps", None, "Waited before its first admission"),
    "ttft_steps": (
        "TTFT, steps", None, "From arrival to first token, including the step of the token; at least 1"
    ),
    "ttft_ms": ("TTFT, ms", "%.1f", "Wall clock, engine side"),
    "itl_p50_steps": ("ITL p50, steps", "%.3g", "Steps between two tokens, median"),
    "itl_p99_steps": ("ITL p99, steps", "%.3g", ""),
    "itl_p50_ms": ("ITL p50, ms", "%.2f", ""),
    "itl_p99_ms": ("ITL p99, ms", "%.2f", ""),
    "prompt_tokens": ("prompt, tokens", "localized", ""),
    "prefix_hit_tokens": ("prefix hit, tokens", None, "Found in the prefix cache at the first admission"),
    "output_tokens": ("output, tokens", "localized", ""),
    "preemptions": ("preempted, times", None, "Number of preemptions"),
    "finish": ("end", None, "Finish reason, or the state at the end of the run"),
    "priority": ("priority", None, "Smaller is more important"),
    "lora": ("LoRA", None, ""),
}  # fmt: skip
"""Field of RequestRow -> title of its column, number format, help."""
WAITING = ("waiting", "preempted")
NO_WAITS: dict[Bar, list[Wait]] = {}
TEXTS = ("request", "finish", "lora")


class Facts(NamedTuple):
    """All requests of a run, by number."""

    rows: list[RequestRow]
    lives: list[list[PhaseSpan]]
    """Phases of each request."""
    colours: list[int]


@st.cache_resource(max_entries=4, show_spinner="Reading the requests …")
def _facts(run_id: str, num_steps: int, num_requests: int, version: int, _run: Run) -> Facts:
    index = _run.index
    lives = [phases(index, request) for request in index.requests]
    return Facts(request_rows(index, lives), lives, index.colours)


def show() -> None:
    run_page("Requests", _show)


def _show(run: Run) -> None:
    index = run.index
    facts = _facts(run.run_id, index.num_steps, len(index.requests), id(run), run)
    clock = has_clock(index.series)
    units = "clock: wall time of the recording" if clock else "scripted run: steps only, no clock"
    heading(
        "Requests",
        run,
        counted(len(facts.rows), "request"),
        counted(index.num_steps, "step"),
        units,
    )
    if not facts.rows:
        st.info("No request arrived in this run.")
        return
    step = step_bar(run, "requests")
    chosen = _chosen_number(facts, step)
    rows, first, last, skip = _filters(run, facts, step)
    shown = gantt([(row.number, facts.lives[row.number]) for row in rows], first, last, skip)
    detailed = chosen if chosen is not None else _usual(rows, facts, step)
    with st.container(key="requests_split"):
        left, right = st.columns([1.3, 1], gap="medium")
    with left:
        _show_gantt(run, facts, shown, step, chosen)
        _show_table(rows, clock)
    with right:
        _show_switch(rows, detailed)
        if detailed is not None:
            show_request(run, detailed, step, facts.rows[detailed], facts.lives[detailed])


def _usual(rows: list[RequestRow], facts: Facts, step: int) -> int | None:
    """The request that is shown if none is selected: the first that lives at the step."""
    living = (row.number for row in rows if overlaps(facts.lives[row.number], step, step))
    return next(living, rows[0].number if rows else None)


def _show_switch(rows: list[RequestRow], shown: int | None) -> None:
    """The position in the list, and buttons, also by key, to the requests before and after."""
    at = next((place for place, row in enumerate(rows) if row.number == shown), None)
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="requests_switch_bar"):
        up = st.button("▲", key="requests_up", help="The request above (↑)", shortcut="up", disabled=not at)
        is_last = at is None or at == len(rows) - 1
        down = st.button(
            "▼", key="requests_down", help="The one below (↓)", shortcut="down", disabled=is_last
        )
        if at is not None:
            st.caption(f"request {at + 1:,} of {len(rows):,}", width="content")
    if at is not None and (up or down):
        _choose(rows[at - 1 if up else at + 1])


def _chosen_number(facts: Facts, step: int) -> int | None:
    """The number of the selected request. Of several with the same id: the clicked one, or the last that had arrived
    at the step."""
    name = session.selection().request
    if name is None:
        return None
    clicked = st.session_state.get("request_number")
    if clicked is not None and clicked < len(facts.rows) and facts.rows[clicked].request == name:
        return int(clicked)
    namesakes = [row for row in facts.rows if row.request == name]
    if not namesakes:
        st.warning(f"This run has no request {plain(repr(name))}.")
        return None
    return ([row for row in namesakes if row.arrived <= step] or namesakes[:1])[-1].number


def _choose(row: RequestRow, **step: int) -> None:
    is_other = st.session_state.get("request_number") != row.number
    st.session_state["request_number"] = row.number
    choose(request=row.request, **step)
    if is_other:  # another request with the same id
        st.rerun()


def _filters(run: Run, facts: Facts, step: int) -> tuple[list[RequestRow], int, int, int]:
    """The requests to show, the first and last step, and the number of requests to skip."""
    num_steps = max(run.index.num_steps, 1)
    counts = {name: sum(map(rule, facts.rows)) for name, rule in SHOW.items()}
    _show_overview(run, facts, step)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        kind = st.segmented_control(
            "Requests", list(SHOW), default="all", key="requests_show", width="content",
            format_func=lambda name: f"{name} {counts[name]:,}",
        )  # fmt: skip
        rows = [row for row in facts.rows if SHOW[kind or "all"](row)]
        first, last = _window(run, step)
        if num_steps > 1:
            key = f"requests_window_{first}_{last}_{num_steps}"
            first, last = st.slider("Steps", 0, num_steps - 1, (first, last), key=key, width=360)
        living = [row for row in rows if overlaps(facts.lives[row.number], first, last)]
        skip = 0
        if len(living) > MAX_ROWS:
            now = next(
                (at for at, row in enumerate(living) if overlaps(facts.lives[row.number], step, step)), 0
            )
            skip = st.number_input(
                f"From row, of {len(living):,}", 0, len(living) - 1, now, MAX_ROWS, width=150,
                key=f"requests_skip_{kind}_{first}_{last}_{now}",
                help=f"The chart shows {MAX_ROWS} requests at a time, initially from the oldest unfinished one",
            )  # fmt: skip
    return rows, first, last, int(skip)


def _show_overview(run: Run, facts: Facts, step: int) -> None:
    """For a run too large for the Gantt chart, the number of requests in each phase."""
    num_steps = run.index.num_steps
    if not num_steps or (num_steps <= LONG and len(facts.rows) <= MAX_ROWS):
        return
    counts = phase_counts(facts.lives, num_steps)
    line_charts(
        run,
        [Chart(phase, "requests", counts[phase], None, f"{counts[phase][step]:,}") for phase in PHASES],
        step=step,
        range=_window(run, step),
        alt=(
            f"The whole run, {counted(num_steps, 'step')}: number of requests waiting, in prefill, in decode "
            "and preempted"
        ),
        hint="The whole run. Drag: select the steps of the chart below. Click: go to that step.",
        key="requests_overview",
        height=56,
    )


def _window(run: Run, step: int) -> tuple[int, int]:
    """The steps of the chart: the selected range, else all of a short run, else those around the current step."""
    return brushed_range(run) or window(run.index.num_steps, step, LONG)


def _show_gantt(run: Run, facts: Facts, chart: Gantt, step: int, chosen: int | None) -> None:
    waits = _waits(run, chart)
    used = reasons_in(wait for of_bar in waits.values() for wait in of_bar)
    phases_shown = SWATCHES[1:] if used else SWATCHES
    legend([*phases_shown, *((wait_swatch(reason), f"waits: {WORDS[reason]}") for reason in used)])
    if waits is NO_WAITS and any(bar.phase in WAITING for bar in chart.bars):
        st.caption(f"Select at most {MAX_STEPS:,} steps to see the reasons of waiting.")
    if st.toggle("Show as table", key="requests_gantt_table"):
        _show_bars(facts, chart, waits)
        return
    left_out = chart.num_in_window - len(chart.numbers)
    picked = rect_chart(
        [rect for bar in chart.bars for rect in _rects(facts, bar, waits)] + _hits(run, facts, chart),
        rows=[(facts.rows[number].request, number) for number in chart.numbers],
        x=(chart.first, chart.last + 1),
        unit="step",
        alt=f"Gantt chart of {counted(len(chart.numbers), 'request')} over steps {chart.first} to {chart.last}, "
        f"{left_out} more are not shown. The same figures are in the table below.",
        hint="Click a bar to select its request and step. Arrow keys and Enter do the same.",
        marker=step,
        chosen=chosen,
        row_height=20 if len(chart.numbers) <= 24 else 13,
        key="requests_gantt",
    )
    if left_out:
        st.caption(f"{len(chart.numbers)} of the {chart.num_in_window:,} requests in these steps.")
    if picked is not None:
        _choose(facts.rows[int(picked.id)], **({} if picked.x is None else {"step": picked.x}))


def _waits(run: Run, chart: Gantt) -> dict[Bar, list[Wait]]:
    """Each bar of a waiting request, divided by reason."""
    bars = [bar for bar in chart.bars if bar.phase in WAITING]
    if chart.last - chart.first >= MAX_STEPS or not bars:
        return NO_WAITS
    index = run.index
    reasons = _reasons(run.run_id, index.num_steps, id(run), chart.first, chart.last, run)
    return {bar: reasons.waits(bar.number, bar.first, bar.last) for bar in bars}


@st.cache_resource(max_entries=8, show_spinner=False)
def _reasons(run_id: str, num_steps: int, version: int, first: int, last: int, _run: Run) -> Reasons:
    return Reasons(_run.reader(first), first, last)


def _show_bars(facts: Facts, chart: Gantt, waits: dict[Bar, list[Wait]]) -> None:
    rows = [
        {
            "request": facts.rows[bar.number].request,
            "phase": bar.phase,
            "from step": first,
            "to step": last,
            "steps": last - first + 1,
            "reason": WORDS.get(reason, ""),
        }
        for bar in chart.bars
        for reason, first, last in waits.get(bar, [Wait("", bar.first, bar.last)])
    ]
    alt = "The phases of the requests, one bar per row"
    st.dataframe(pd.DataFrame(rows), hide_index=True, height=300, alt=alt)


def _rects(facts: Facts, bar: Bar, waits: dict[Bar, list[Wait]]) -> list[Rect]:
    """One rectangle, or one for each reason of waiting."""
    name, colour = facts.rows[bar.number].request, facts.colours[bar.number]
    if bar not in waits:
        title = f"{name}: {bar.phase}, {_steps(bar.first, bar.last)}"
        place = (bar.first, bar.last + 1, bar.row, bar.row + 1)
        label = "decode" if bar.phase == "decode" else ""
        return [Rect(*place, bar.phase, label, title, bar.number, colour)]
    rects = []
    for reason, first, last in waits[bar]:
        style = "passed" if reason in PASSED_OVER and bar.phase == "waiting" else bar.phase
        title = f"{name}: {bar.phase}, {_steps(first, last)}: {WORDS[reason]}"
        place = (first, last + 1, bar.row, bar.row + 1)
        rects.append(Rect(*place, style, "", title, bar.number, WAITS[reason]))
    return rects


def _hits(run: Run, facts: Facts, chart: Gantt) -> list[Rect]:
    """A dot where a request found a part of its tokens in the cache."""
    reader = run.reader(chart.first)
    return [
        Rect(
            *(hit.step, hit.step + 1, row, row + 1), "hit", "",
            f"{facts.rows[number].request}: step {hit.step} found {hit.tokens:,} of its {hit.of:,} tokens in the cache",
            number,
        )
        for row, number in enumerate(chart.numbers)
        for hit in hits(reader.requests[number])
        if chart.first <= hit.step <= chart.last
    ]  # fmt: skip


def _steps(first: int, last: int) -> str:
    return f"step {first}" if first == last else f"{last - first + 1} steps, {first} to {last}"


def _show_table(rows: list[RequestRow], clock: bool) -> None:
    frame = pd.DataFrame([asdict(row) for row in rows], columns=["number", *COLUMNS])
    shown = [name for name in COLUMNS if _is_telling(frame, name, clock)]
    alt = f"Table of {counted(len(rows), 'request')} with their latencies in steps" + (
        " and ms" if clock else ""
    )
    columns = {
        name: st.column_config.TextColumn(title, help=about or None, pinned=name == "request")
        if name in TEXTS
        else st.column_config.NumberColumn(title, format=how, help=about or None)
        for name, (title, how, about) in COLUMNS.items()
    }
    row = row_table(frame, "requests_table", alt, max_height=260, column_config=columns, column_order=shown)
    if row is not None:
        _choose(rows[row])


def _is_telling(frame: pd.DataFrame, name: str, clock: bool) -> bool:
    """Whether a column has information: milliseconds need a clock; priorities and adapters may all be unset."""
    if name == "priority":
        return bool((frame[name] != 0).any())
    if name == "lora":
        return bool(frame[name].notna().any())
    return clock or not name.endswith("_ms")

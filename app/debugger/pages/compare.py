"""Page Compare: two runs, their first divergence and its cause, the effect on each request, the blocks of both."""

from __future__ import annotations

from html import escape

import numpy as np
import pandas as pd
import streamlit as st
from numpy.typing import NDArray

from app.debugger import session
from app.debugger.catalogue import HERO, load_catalogue, title_of
from app.debugger.colours import BLOCK_SWATCHES
from app.debugger.mini_map import mini_map, owner_looks
from app.debugger.page_frame import choose, heading, legend, told
from app.debugger.pages.fork_form import FORK_AT, forkable, show_fork_form, show_twin
from app.debugger.pages.paired_lives import show_lives
from app.debugger.runs import Run, list_runs
from app.debugger.views import compare as view
from app.debugger.views.paired import pairs
from engine.trace.diff import TraceDiff, diff
from engine.trace.divergence import Divergence, describe
from engine.trace.format import TraceError
from engine.trace.protocol import Trace
from prep_common.text import counted

BLUE, ORANGE = "var(--blue)", "var(--orange)"
MAP_WIDTH_REM = 22
MOST_STEPS = 30_000
"""Steps of both runs together; longer runs are compared only after a click."""
SECONDS_PER_STEP = 3e-4
"""Estimated for steps of 64 rows."""
MOST_CELLS = 400
"""Up to this number of blocks the map is drawn as on the page Step; beyond it each block is a pixel."""
OWNED = [
    ("height:12px;background:var(--request-0)", "used, in the colour of its request"),
    ("height:12px;background:linear-gradient(90deg,var(--request-0) 50%,var(--request-1) 50%)", "shared"),
    (BLOCK_SWATCHES["cached"], "cached and free"),
    (BLOCK_SWATCHES["free"], "free"),
]
"""The legend of a small map."""
LEGEND = [
    (BLOCK_SWATCHES["used"], "used by one request"),
    (BLOCK_SWATCHES["shared"], "shared by several"),
    (BLOCK_SWATCHES["cached"], "cached and free"),
    (BLOCK_SWATCHES["free"], "free"),
]
FIRST = next(entry.id for entry in load_catalogue().values() if entry.group == HERO)
"""Run A of a tab that has opened none."""
ALIGN = {"step": "step", "token": "token of a request", "time": "time"}
_SEEN_PAIR = "compare_pair"
_SETTINGS = {"num_blocks": "num_blocks with the null block"}
"""Settings whose name alone misleads: all pages count blocks without the null block."""


def open_fork_form(run: Run, step: int) -> None:
    """Go to this page with the fork form open at a step of a run. A live run is saved first."""
    recording = forkable(run)
    st.session_state[FORK_AT] = step
    session.go("compare", run=recording, step=step)


def show() -> None:
    try:
        _show()
    except TraceError as error:
        st.error(told(error))


def _show() -> None:
    chosen = session.selection()
    ids = _run_ids(chosen.run, chosen.other)
    try:
        a = session.get_run(str(session.select(run=chosen.run or FIRST).run))
    except TraceError:
        st.title("Compare")
        raise
    heading("Compare", a, "steps count from 0; shown is the state after a step")
    other, forking = _choose(ids, a.run_id, chosen.other)
    if forking or other is None:
        show_fork_form(a)
    if other is None:
        st.info("Choose a second run as B, or fork run A, to compare them here.")
        return
    show_twin(other)
    _compare(a, session.get_run(other))


def _run_ids(*also: str | None) -> list[str]:
    """The user's runs, then the shipped ones in the order of the page Runs."""
    mine = [entry.run_id for entry in list_runs() if entry.run_id.startswith("mine:")]
    listed = [*mine, *load_catalogue()]
    return listed + [run_id for run_id in dict.fromkeys(also) if run_id and run_id not in listed]


def _name(run_id: str) -> str:
    return title_of(run_id) or run_id


def _choose(ids: list[str], a: str, b: str | None) -> tuple[str | None, bool]:
    """Run B, and whether the fork form is open. A new choice reruns the page."""
    left, swap, right, fork = st.columns([3, 0.6, 3, 1.4], vertical_alignment="bottom")
    new_a = left.selectbox("Run A", ids, ids.index(a), key=f"compare_a_{a}", format_func=_name)
    new_b = right.selectbox(
        "Run B",
        ids,
        None if b is None else ids.index(b),
        key=f"compare_b_{b}",
        placeholder="none yet",
        format_func=_name,
    )
    if swap.button("⇄", key="compare_swap", help="Swap A and B", disabled=b is None, width="stretch"):
        new_a, new_b = b or new_a, a
    parameter = st.query_params.get("fork", "")
    if parameter.isdecimal():
        st.session_state[FORK_AT] = int(parameter)
    is_asked = FORK_AT in st.session_state
    if fork.button("Fork A…", key="compare_fork", help="Run A again with something changed", width="stretch"):
        if st.session_state.pop(FORK_AT, None) is None:
            st.session_state[FORK_AT] = session.selection().step
        st.query_params.pop("fork", None)
        st.rerun()
    if (new_a, new_b) != (a, b):
        session.select(run=new_a)
        session.select(other=new_b, step=0)
        st.session_state.pop(_SEEN_PAIR, None)
        st.rerun()
    return b, is_asked


def _compare(a: Run, b: Run) -> None:
    if not _is_worth_the_wait(a, b):
        return
    one, other = a.reader(0), b.reader(0)
    difference = _diff(
        f"{a.run_id}@{id(a)}", f"{b.run_id}@{id(b)}", a.index.num_steps, b.index.num_steps, one, other
    )
    _go_to_first(difference, (a.run_id, b.run_id))
    with_equal = _show_summary(difference, one, other)
    if not one.num_steps:
        st.info("Run A has no steps.")
        return
    step = min(session.selection().step, max(one.num_steps, other.num_steps) - 1)
    lives = pairs(difference.requests, ((one, a.index), (other, b.index)))
    show_lives(difference, lives, max(one.num_steps, other.num_steps), step, with_equal)
    _show_jumps(difference, a, b, step)
    _show_divergence(describe(one, other, step), a, b, step)
    table, maps = st.columns([1, 1.1], gap="medium")
    with table:
        _show_figures(difference, with_equal)
    with maps:
        _show_maps(a, b, one, other, min(step, one.num_steps - 1))
    _show_requests(difference, with_equal)


def _is_worth_the_wait(a: Run, b: Run) -> bool:
    """Ask once per pair before comparing long runs, because reading every step takes time."""
    tokens = sum(int(run.index.series.num_tokens.sum()) for run in (a, b))
    steps = a.index.num_steps + b.index.num_steps
    key = f"compare_anyway_{a.run_id}_{b.run_id}"
    if steps <= MOST_STEPS or st.session_state.get(key):
        return True
    st.info(
        f"Both runs together have {counted(steps, 'step')} and {tokens:,} computed tokens. Comparing them takes about "
        f"{max(1, round(steps * SECONDS_PER_STEP / 10)) * 10} s. `prep trace diff` does the same in a terminal."
    )
    if st.button("Compare the runs"):
        st.session_state[key] = True
        st.rerun()
    return False


@st.cache_resource(max_entries=8, show_spinner="Comparing …")
def _diff(key_a: str, key_b: str, num_steps_a: int, num_steps_b: int, _a: Trace, _b: Trace) -> TraceDiff:
    return diff(_a, _b)


def _go_to_first(difference: TraceDiff, pair: tuple[str, str]) -> None:
    """Open a new pair at its first divergence, unless the URL names a step."""
    if st.session_state.get(_SEEN_PAIR) != pair:
        st.session_state[_SEEN_PAIR] = pair
        if difference.first is not None and session.selection().step == 0:
            session.select(step=difference.first.step)


def _show_summary(difference: TraceDiff, a: Trace, b: Trace) -> bool:
    """Say what differs. Returns whether the page lists what is equal too."""
    words, switch = st.columns([5, 1.3], vertical_alignment="center")
    words.markdown(f"**{told(view.summary(difference))}**")
    with_equal = switch.toggle("Also what is equal", key="compare_equal")
    if not difference.same_workload:
        said = "; ".join(difference.workload_notes) or "the recorded requests differ"
        st.caption(f"⚠ The workloads differ: {told(said)}. Requests are matched by id.")
    changed = [
        f"{_SETTINGS.get(name, name)}: A {'none' if one is None else one}, B {'none' if other is None else other}"
        for name, one, other in difference.settings
    ]
    both_timed = difference.clocks == ("wall", "wall")
    clocks = (
        "times are wall times of one run each" if both_timed else "clock: steps (a fork has no wall clock)"
    )
    st.caption(told(" · ".join([*changed, clocks])))
    for name, reader in (("A", a), ("B", b)):
        for note in reader.notes:
            st.caption(f"{name}: {told(note)}")
        if reader.error:
            st.error(f"{name} ended early. {told(reader.error)}")
    return with_equal


def _show_jumps(difference: TraceDiff, a: Run, b: Run, step: int) -> None:
    """The step shown below, buttons to the divergences, and to the page Step of either run."""
    number = sum(divergence <= step for divergence in difference.divergences)
    total = len(difference.divergences)
    position = (
        f"divergence {number} of {total}" if step in difference.divergences else counted(total, "divergence")
    )
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="compare_jump_bar"):
        st.markdown(f"Step **{step:,}** · {position}", width="content")
        for words, target in (
            ("First", next(iter(difference.divergences), None)),
            ("◀ Previous", difference.previous_divergence(step)),
            ("Next ▶", difference.next_divergence(step)),
        ):
            is_here = target is None or target == step
            if st.button(words, key=f"compare_{words}", disabled=is_here):
                choose(step=target)
        for name, run in zip("AB", (a, b), strict=True):
            is_over = step >= run.index.num_steps
            if st.button(f"Open {name} at step {step:,}", key=f"compare_open_{name}", disabled=is_over):
                session.select(run=run.run_id)
                session.go("step", step=step, other=(b if name == "A" else a).run_id)


def _show_divergence(divergence: Divergence, a: Run, b: Run, step: int) -> None:
    """Show what each run decided in the step, and why."""
    for column, name, run, side in zip(
        st.columns(2, gap="medium"), "AB", (a, b), (divergence.a, divergence.b), strict=True
    ):
        colour = BLUE if name == "A" else ORANGE
        item = '<li style="font-size:.82rem;color:var(--soft)">'
        reasons = "".join(f"{item}{escape(reason)}</li>" for reason in side.reasons)
        what = side.decided if divergence.kinds else f"Same decision. {side.decided.rpartition('. ')[2]}"
        column.html(
            f'<div style="border-left:3px {"solid" if name == "A" else "dashed"} {colour};background:var(--panel);'
            f'padding:6px 10px;font-size:.85rem" data-side="{name}" data-step="{step}">'
            f'<b style="color:{colour}">{name}</b> {escape(run.title)} · step {step:,}<br>{escape(what)}'
            f'<ul style="margin:4px 0 0;padding-left:1.1rem">{reasons}</ul></div>'
        )


def _show_figures(difference: TraceDiff, with_equal: bool) -> None:
    shown = [figure for figure in difference.figures if with_equal or figure.a != figure.b]
    st.markdown("**Whole run**" if with_equal else "**Whole run**: the figures that differ")
    if not shown:
        st.caption("None.")
        return
    rows = view.figure_rows(shown, difference.same_workload)
    columns = {name: st.column_config.NumberColumn(name, format="localized") for name in ("A", "B", "B − A")}
    alt = "; ".join(f"{row['figure']} {row['A']} and {row['B']}" for row in rows)
    st.dataframe(
        pd.DataFrame(rows),
        hide_index=True,
        column_config=columns,
        height=35 * (len(rows) + 1) + 3,
        alt=f"Figures of both runs: {alt}",
    )


def _show_maps(a: Run, b: Run, one: Trace, other: Trace, step: int) -> None:
    st.markdown("**Blocks of both**")
    how_box, who_box = st.columns([1.4, 1])
    both_timed = a.index.header.get("clock") != "steps" and b.index.header.get("clock") != "steps"
    ways = [way for way in ALIGN if way != "time" or both_timed]
    how = how_box.segmented_control(
        "Align by", ways, default="step", key="compare_align", format_func=ALIGN.__getitem__
    )
    request = None
    if how == "token":
        names = list(dict.fromkeys(r.request_id for r in one.requests))
        wanted = session.selection().request
        index = names.index(wanted) if wanted in names else 0
        request = who_box.selectbox("Request", names, index, key="compare_request")
    there, words = view.aligned_step(how or "step", step, one, other, request)
    is_small = max(a.index.num_blocks, b.index.num_blocks) <= MOST_CELLS
    unlike = "Blocks that differ have a thick frame" if is_small else "Blocks with the same state are dimmed"
    st.caption(f"A: after step {step:,}. B: {words}. {unlike}; each cell is a block.")
    left, right = st.columns(2)
    states_a = a.index.block_states(step)
    states_b = None if there is None else b.index.block_states(there)
    with left:
        _show_map("A", a, step, states_b, is_small)
    if states_b is not None and there is not None:
        with right:
            _show_map("B", b, there, states_a, is_small)
    legend(OWNED if is_small else LEGEND)
    if states_b is not None:
        count = view.num_different(states_a, states_b)
        st.caption(f"{count:,} {'block has' if count == 1 else 'blocks have'} different states.")


def _show_map(name: str, run: Run, step: int, beside: NDArray[np.uint8] | None, is_small: bool) -> None:
    block_map, states = view.block_map(run.index, step, beside), run.index.block_states(step)
    words = f"Blocks of run {name} after step {step}: {block_map.words}"
    if is_small:
        differ = () if beside is None else np.flatnonzero(view.unlike(states, beside)).tolist()
        image = mini_map(states, owner_looks(run, step), frozenset(differ), columns=16, words=words)
    else:
        image = (
            f'<img src="{block_map.png}" alt="{words}" style="width:100%;max-width:{MAP_WIDTH_REM}rem;'
            'image-rendering:pixelated;border:1px solid var(--line)">'
        )
    st.html(
        f'<figure style="margin:0">{image}'
        f'<figcaption style="font-size:.78rem;color:var(--soft)"><b>{name}</b> after step {step:,}: '
        f"{escape(block_map.words)}</figcaption></figure>"
    )


def _show_requests(difference: TraceDiff, with_equal: bool) -> None:
    st.markdown("**Requests**" if with_equal else "**Requests**: those that differ, and in which figures")
    rows = view.request_table(difference.requests, with_equal)
    if not rows:
        st.caption("None.")
        return
    st.dataframe(
        pd.DataFrame(rows),
        hide_index=True,
        height=min(35 * (len(rows) + 1) + 3, 360),
        column_config={"request": st.column_config.TextColumn("request", pinned=True)},
        placeholder="–",
        alt=f"{counted(len(rows), 'request')} in A and in B",
    )

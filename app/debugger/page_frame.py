"""Common parts of the pages of a run: heading, step bar, and messages for unreadable runs."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable
from functools import wraps
from html import escape
from typing import Any, ParamSpec

import pandas as pd
import streamlit as st

from app.debugger import session
from app.debugger.runs import Run
from engine.trace.format import TraceError, shown_name

_P = ParamSpec("_P")

_RANGE = "range"
"""Session key: run, first and last step of the selected range."""


def run_page(title: str, body: Callable[[Run], None]) -> None:
    """A page about the selected run. Without one it links to the page Runs; a TraceError is shown as text."""
    try:
        run = session.current_run()
    except TraceError as error:
        st.title(title)
        st.error(told(error))
        return
    if run is None:
        st.title(title)
        st.info("No run is open. Choose one on the page Runs.")
        if st.button("Runs", key="to_runs"):
            session.go("runs")
        return
    last = max(0, run.index.num_steps - 1)
    if (step := session.selection().step) > last and not run.is_live:
        session.select(step=last)
        link_is_wrong(f"This run has no step {step:,}. Shown is its last step.")
    try:
        body(run)
    except TraceError as error:
        st.error(told(error))


def plain(text: str) -> str:
    """Escape Markdown in a name from a trace or URL: `![](http://...)` would make the browser fetch a picture."""
    return re.sub(r"([\\`*_{}\[\]()#+!|<>$~:])", r"\\\1", shown_name(" ".join(text.splitlines())))


def told(error: object) -> str:
    """Escape Markdown in a message that contains names, except `code`."""
    parts = re.split(r"(`[^`]*`)", shown_name(" ".join(str(error).splitlines())))
    return "".join(
        part if index % 2 else re.sub(r"([\\\[\]<$*~])", r"\\\1", part) for index, part in enumerate(parts)
    )


def in_words(show: Callable[_P, None]) -> Callable[_P, None]:
    """Decorate a page or a fragment so that its errors are shown as sentences.

    A fragment needs the decorator too: when it reruns alone, no caller catches its errors.
    """

    @wraps(show)
    def careful(*args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            show(*args, **kwargs)
        except TraceError as error:
            st.error(told(error))
        except Exception as error:
            if os.environ.get("PREP_DEBUG"):
                raise
            # A bug: one line on the page, the traceback in the terminal; the rest of the workbench continues.
            logging.getLogger(__name__).error("a page failed", exc_info=error)
            st.error(
                f"This page failed with {type(error).__name__}: {plain(str(error))}. The terminal that runs `prep app` "
                "has the details; the other pages still work."
            )

    return careful


def heading(title: str, run: Run, *facts: str) -> None:
    """The names of page and run on one line, and the run's warnings."""
    text = " · ".join(filter(None, [run.title, *facts]))
    st.html(
        f'<h1 style="display:inline;font-size:1.15rem;margin:0">{escape(title)}</h1> '
        f'<span style="color:var(--quiet);font-size:.85rem">{escape(text)}</span>'
    )
    for warning in run.warnings:
        st.caption(f"⚠ {told(warning)}")


def opened(run: Run, title: str, key: str, *facts: str) -> int | None:
    """Show heading and step bar, and return the step; None in a run without steps."""
    heading(title, run, *facts)
    if run.index.num_steps:
        return step_bar(run, key)
    st.info("This run has no steps yet.")
    return None


def step_bar(run: Run, key: str) -> int:
    """Show the current step with controls, and return it; 0 in a run without steps."""
    last = run.index.num_steps - 1
    if last < 0:
        return 0
    step = min(session.selection().step, last)
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key=f"{key}_step_bar"):
        moved = number_box("Step", last, step, f"{key}_step")
        if st.button("◀", key=f"{key}_before", help="One step back (←)", shortcut="left", disabled=step == 0):
            moved = step - 1
        if st.button(
            "▶", key=f"{key}_after", help="One step forward (→)", shortcut="right", disabled=step == last
        ):
            moved = step + 1
        if st.button(f"Open step {step:,}", key=f"{key}_open", help="On the page Step"):
            session.go("step", step=step)
        refresh_help = "Read the new steps of this live run"
        if run.is_live and st.button("Refresh", key=f"{key}_refresh", help=refresh_help):
            st.rerun()
        st.caption("Shown: the state after this step.", width="content")
    if moved != step:
        choose(step=moved)
    return step


def link_is_wrong(what: str) -> None:
    """Say for a few seconds that the address names something that does not exist, and what is shown instead."""
    st.toast(told(what), icon=":material/link_off:")


def number_box(label: str, most: int, value: int | None, key: str) -> int | None:
    """A compact box for a number from 0 to `most`; None: empty."""
    st.markdown(label, width="content")
    # The key contains the value: a jump from elsewhere creates a new box with it.
    number = st.number_input(
        f"{label}, 0 to {most:,}",
        0,
        most,
        value,
        key=f"{key}_{value}_{most}",
        placeholder="none",
        width=120,
        label_visibility="collapsed",
    )
    st.caption(f"of 0 to {most:,}", width="content")
    return None if number is None else int(number)


def brushed_range(run: Run) -> tuple[int, int] | None:
    """First and last step selected on a chart of this run, limited to its steps."""
    of_run, first, last = st.session_state.get(_RANGE, (None, 0, 0))
    num_steps = run.index.num_steps
    return (first, min(last, num_steps - 1)) if of_run == run.run_id and first < num_steps else None


def brush(run: Run, steps: tuple[int, int] | None) -> None:
    """Select a range of steps for all pages of a run; None clears it."""
    if steps is None:
        st.session_state.pop(_RANGE, None)
    elif steps == brushed_range(run):
        return
    else:
        st.session_state[_RANGE] = (run.run_id, *steps)
    st.rerun()


def choose(**changes: Any) -> None:
    """Change the selection after a click on a chart or row, and show the page again."""
    before = session.selection()
    if session.select(**changes) != before:
        st.rerun()


def legend(entries: Iterable[tuple[str, str]]) -> None:
    """Show swatches with their meanings: (CSS of the swatch, words)."""
    parts = [
        f'<span style="white-space:nowrap"><i aria-hidden="true" style="display:inline-block;width:22px;'
        f'vertical-align:middle;margin-right:5px;{css}"></i>{escape(words)}</span>'
        for css, words in entries
    ]
    st.html(
        '<div style="display:flex;flex-wrap:wrap;gap:2px 16px;font-size:.78rem;color:var(--soft)">'
        + "".join(parts)
        + "</div>"
    )


def row_table(
    rows: Any, key: str, alt: str, *, max_height: int = 300, row_height: int = 36, **options: Any
) -> int | None:
    """Show rows (dicts or a DataFrame) with selection; returns the index of a newly selected row. Heights in pixels;
    text wraps in rows higher than usual."""
    frame = pd.DataFrame(rows)
    event: Any = st.dataframe(
        frame,
        key=key,
        alt=alt,
        hide_index=True,
        height=min(36 + row_height * len(frame) + 2, max_height),
        row_height=None if row_height == 36 else row_height,
        on_select="rerun",
        selection_mode="single-row",
        **{"placeholder": "–", **options},
    )
    marked = list(event.selection.rows)
    return marked[0] if newly(key, marked) and marked and marked[0] < len(frame) else None


def newly(key: str, value: object) -> bool:
    """Whether a widget's value changed since the last call: a selection stays, but must act only once."""
    name = f"seen_{key}"
    if st.session_state.get(name) == value:
        return False
    st.session_state[name] = value
    return True

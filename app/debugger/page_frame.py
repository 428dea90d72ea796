"""What the pages of a run have in common: its name, the step that they look at, and words for what cannot be read."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable
from functools import wraps
from html import escape
from typing import ParamSpec

import streamlit as st

from app.debugger import session
from app.debugger.runs import Run
from engine.trace.format import TraceError

_P = ParamSpec("_P")

_RANGE = "range"
"""In a tab's session: the run, first and last step of what was brushed."""


def run_page(title: str, body: Callable[[Run], None]) -> None:
    """A page about the selected run. Without one, the way to the list; what cannot be read is said in words."""
    try:
        run = session.current_run()
        if run is None:
            st.title(title)
            st.info("No run is open. Choose one on the page Runs.")
            if st.button("Runs", key="to_runs"):
                session.go("runs")
            return
        body(run)
    except TraceError as error:
        st.error(told(error))


def plain(text: str) -> str:
    """A name from a trace or an address may look like Markdown, and must not be read as such: `![](http://...)` would
    have the browser fetch a picture."""
    return re.sub(r"([\\`*_{}\[\]()#+!|<>$~:])", r"\\\1", " ".join(text.splitlines()))


def told(error: object) -> str:
    """A sentence of ours with names in it: its `code` stays code, and what would be links, pictures, colours, formulas
    or emphasis is plain."""
    parts = re.split(r"(`[^`]*`)", " ".join(str(error).splitlines()))
    return "".join(
        part if index % 2 else re.sub(r"([\\\[\]<$*~])", r"\\\1", part) for index, part in enumerate(parts)
    )


def in_words(show: Callable[_P, None]) -> Callable[_P, None]:
    """A page, or a part of one that runs again by itself, whose errors are sentences on the screen.

    A part needs its own: when it runs alone, nobody above it catches anything.
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
            # A mistake of ours: in one line here and in full in the terminal, and the rest of the workbench goes on.
            logging.getLogger(__name__).error("a page failed", exc_info=error)
            st.error(
                f"This page failed with {type(error).__name__}: {plain(str(error))}. The terminal that runs `prep app` "
                "has the details; the other pages go on."
            )

    return careful


def heading(title: str, run: Run, *facts: str) -> None:
    """The page's name and the run's, on one line, and what is missing from the run."""
    text = " · ".join(filter(None, [run.title, *facts]))
    st.html(
        f'<h1 style="display:inline;font-size:1.15rem;margin:0">{escape(title)}</h1> '
        f'<span style="color:#9ca3af;font-size:.85rem">{escape(text)}</span>'
    )
    for warning in run.warnings:
        st.caption(f"⚠ {told(warning)}")


def step_bar(run: Run, key: str) -> int:
    """The step that the page looks at, and the way to the page Step. 0 in a run without steps."""
    num_steps = run.index.num_steps
    if not num_steps:
        return 0
    step = min(session.selection().step, num_steps - 1)
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key=f"{key}_step_bar"):
        st.markdown("Step", width="content")
        # The key holds the step: a jump from elsewhere makes a new box that shows it.
        chosen = st.number_input(
            f"Step, 0 to {num_steps - 1:,}", 0, num_steps - 1, step, key=f"{key}_step_{step}_{num_steps}", width=120,
            label_visibility="collapsed",
        )  # fmt: skip
        st.caption(f"of 0 to {num_steps - 1:,}", width="content")
        moved = int(chosen)
        if st.button("◀", key=f"{key}_before", help="One step back", disabled=step == 0):
            moved = step - 1
        if st.button("▶", key=f"{key}_after", help="One step on", disabled=step == num_steps - 1):
            moved = step + 1
        if st.button(f"Open step {step:,}", key=f"{key}_open", help="On the page Step"):
            session.go("step", step=step)
        if run.is_live and st.button(
            "Refresh", key=f"{key}_refresh", help="The run goes on: read what is new"
        ):
            st.rerun()
        st.caption("Shown: the state after this step.", width="content")
    if moved != step:
        session.select(step=moved)
        st.rerun()
    return step


def brushed_range(run: Run) -> tuple[int, int] | None:
    """The steps, first and last, that were brushed on a chart of this run; cut to what there is."""
    of_run, first, last = st.session_state.get(_RANGE, (None, 0, 0))
    num_steps = run.index.num_steps
    return (first, min(last, num_steps - 1)) if of_run == run.run_id and first < num_steps else None


def brush(run: Run, steps: tuple[int, int] | None) -> None:
    """Choose a range of steps for all pages of a run, or none."""
    if steps is None:
        st.session_state.pop(_RANGE, None)
    elif steps == brushed_range(run):
        return
    else:
        st.session_state[_RANGE] = (run.run_id, *steps)
    st.rerun()


def choose_step(step: int) -> None:
    """A click on a chart or a row: look at that step from now on."""
    if step != session.selection().step:
        session.select(step=step)
        st.rerun()


def legend(entries: Iterable[tuple[str, str]]) -> None:
    """Swatches with their meaning: (CSS of the swatch, words)."""
    parts = [
        f'<span style="white-space:nowrap"><i aria-hidden="true" style="display:inline-block;width:22px;'
        f'vertical-align:middle;margin-right:5px;{css}"></i>{escape(words)}</span>'
        for css, words in entries
    ]
    st.html(
        '<div style="display:flex;flex-wrap:wrap;gap:2px 16px;font-size:.78rem;color:#d1d5db">'
        + "".join(parts)
        + "</div>"
    )


def newly(key: str, value: object) -> bool:
    """Whether a widget's value changed since this page last looked: a selection stays, but acts only once."""
    name = f"seen_{key}"
    if st.session_state.get(name) == value:
        return False
    st.session_state[name] = value
    return True

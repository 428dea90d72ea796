"""Page Live: a running engine, started here or attached to."""

from __future__ import annotations

import streamlit as st

from app.debugger.live import registry
from app.debugger.live.client import LiveRun, LiveView
from app.debugger.live.controls import show_controls, show_said, show_status
from app.debugger.live.start_form import attach, show_attach_form, show_start_form
from app.debugger.page_frame import in_words, plain, told
from app.debugger.session import get_run, select, selection
from engine.trace.format import TraceError


def show() -> None:
    if (url := _wanted_address()) is not None and (run := attach(url)) is not None:
        select(run=run.run_id)
    run_id = selection().run or ""
    if run_id.startswith("live:"):
        try:
            view = get_run(run_id)
        except TraceError as error:
            st.error(told(error))
        else:
            assert isinstance(view, LiveView)
            _show_engine(view)
            return
    _show_forms()


def _wanted_address() -> str | None:
    """The address from `prep app --attach` or the page Runs, removed from the URL because it holds a token."""
    url: str | None = st.session_state.pop("attach", None) or st.query_params.get("attach")
    if "attach" in st.query_params:
        del st.query_params["attach"]
    return url


def _show_forms() -> None:
    st.title("Live")
    _list_runs()
    started = show_start_form()
    st.divider()
    started = show_attach_form() or started
    if started is not None:
        _open(started)


def _open(run: LiveRun) -> None:
    st.session_state.pop("pace", None)
    select(run=run.run_id)
    st.rerun()


def _list_runs() -> None:
    runs = registry.live_runs()
    if not runs:
        return
    row = st.container(horizontal=True, vertical_alignment="center")
    row.markdown("Live runs:")
    for run in runs:
        state = "" if run.end is None else " (ended)"
        if row.button(f"{run.run_id} · {run.title}{state}", key=f"open {run.run_id}"):
            _open(run)


def _show_engine(view: LiveView) -> None:
    from app.debugger.pages.step import is_leaving

    show_status(view, follow=not is_leaving())
    show_controls(view)
    show_said()
    for warning in view.warnings:
        st.warning(told(warning))
    _show_steps(view)
    _show_answers(view)


def _show_steps(view: LiveView) -> None:
    def wait() -> None:
        if view.catch_up().index.num_steps:
            st.rerun()

    if view.index.num_steps:
        from app.debugger.pages.step import show_run

        show_run(view)
        return
    st.title(plain(view.title))
    st.info("No step has run yet: press Run or Step.")
    if view.is_live:
        st.fragment(in_words(wait), run_every=0.3)()


def _show_answers(view: LiveView) -> None:
    process = registry.process_of(view.run_id)
    if process is None or not process.answers:
        return
    rows = [
        {"request": name, "ended by": reason, "answer": text}
        for name, (reason, text) in process.answers.items()
    ]
    with st.expander(f"Answers so far: {len(rows)}"):
        st.dataframe(rows, hide_index=True)

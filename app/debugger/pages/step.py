"""Page Step: the block map and the batch after one step, with playback."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import streamlit as st

from app.debugger.charts import mount
from app.debugger.page_frame import in_words, run_page, told
from app.debugger.question_panel import answered_at, asked_at, is_open, show_panel
from app.debugger.runs import Run
from app.debugger.session import get_run, select, selection, write_url
from app.debugger.step_view import FOLDER, parts, script
from app.debugger.step_view.envelope import envelope

KEY = "step_view"
_JUMP = "step_view.jump"
_SHOWN = "step_view.shown"
_FOLLOWED = "step_view.followed"
"""Session key: the live run whose last step this tab shows. The browser tells other steps than that one late."""
_LEAVING = "step_view.leaving"
"""Session key: the step of a live run at which the fork form opens next."""
FOLLOW_S = 0.25
"""Seconds between two refreshes of a live run."""


def show() -> None:
    run_page("Step", _show_page)


def _show_page(run: Run) -> None:
    for warning in run.warnings:
        st.caption(f"⚠ {told(warning)}")
    if run.index.num_steps == 0 and not run.is_live:
        st.info("This run has no steps: the engine never received a request.")
        return
    show_run(run)


def show_run(run: Run) -> None:
    """Show a run, here and on the page Live. A live run refreshes itself."""
    if run.is_live and not is_leaving():
        st.fragment(in_words(_follow), run_every=FOLLOW_S)(run.run_id)
    else:
        st.fragment(in_words(_view))(run)


def is_leaving() -> bool:
    """Whether this tab is about to leave a live run. Nothing may refresh itself then: a refresh that the browser
    has already asked for would run on the next page and empty it. The view asks again once all refreshes have ended."""
    return _LEAVING in st.session_state


def _follow(run_id: str) -> None:
    run = get_run(run_id)
    if not run.is_live:
        st.rerun()
    _view(run)


def _view(run: Run) -> None:
    key = run_key(run)
    cut = _sizes(key, run)
    num_steps = run.index.num_steps  # before the parts: a live run may grow meanwhile
    wanted: list[str] = []
    if said := _heard(key):
        if said.get("still"):
            st.session_state.pop(_LEAVING, None)
        _take_over(said)
        wanted = said.get("need", [])
    _follow_to_the_end(run, key, said)
    if not said and st.session_state.get(_SHOWN) != key:
        wanted = parts.first_keys(run, cut, selection().step)
    st.session_state[_SHOWN] = key
    make = parts.make if run.is_live else partial(_part, key)
    contents = {name: part for name in wanted if (part := make(run, cut, name)) is not None}
    if run.is_live:
        growths: dict[str, parts.Growth] = st.session_state.setdefault("step_view.growth", {})
        # what this tab has received
        contents = growths.setdefault(key, parts.Growth()).parts(run, cut) | contents
    scheduler = run.index.header.get("config", {}).get("scheduler", {})
    head = {
        "run": key,
        "title": run.title,
        "live": run.is_live,
        "num_steps": num_steps,
        "num_blocks": run.index.num_blocks,
        "block_size": run.index.block_size,
        "budget": scheduler.get("max_num_batched_tokens"),
        "slots": scheduler.get("max_loras"),
        "window": cut.window,
        "chunk": cut.chunk,
        "hidden_after": asked_at(run),
        "answered": answered_at(run),
        "answer": said.get("sequence", 0) if said else 0,
        "jump": _jump(),
        "leaving": st.session_state.get(_LEAVING),
    }
    with st.container(key="step_and_quiz"):  # the style puts an open question beside the map
        mount("prep_step_view", FOLDER / "step_view", envelope(head, contents), KEY, ["say"], js=script())
        if run.index.num_steps:
            with st.container(key="step_quiz_open" if is_open(run) else "step_quiz"):
                show_panel(run, min(selection().step, run.index.num_steps - 1))
    if said and "fork" in said:
        if run.is_live and not said.get("still"):
            st.session_state[_LEAVING] = said["fork"]
            st.rerun()
        from app.debugger.pages.compare import open_fork_form  # with its charts, seconds to import

        open_fork_form(run, said["fork"])


def _heard(run_key: str) -> dict[str, Any] | None:
    """The component's message since the last run of this script, if it is about this run."""
    state = st.session_state.get(KEY)
    said = state.get("say") if state else None
    return said if said and said.get("run") == run_key else None


def _take_over(said: dict[str, Any]) -> None:
    """Take over the selection from the browser, which moves on its own, and update the URL."""
    after = select(step=said["step"], request=said["request"], block=said["block"])
    st.session_state[_JUMP] = (st.session_state.get(_JUMP, (0, None))[0], after)
    write_url()


def _follow_to_the_end(run: Run, key: str, said: dict[str, Any] | None) -> None:
    """Show the last step when a run ends that was followed: it can end before the browser has told where it is, or
    before the browser has shown it at all."""
    if said:
        follows = said.get("follows", False)
    elif st.session_state.get(_SHOWN) != key:
        follows = run.is_live or (run.run_id.startswith("live:") and selection().step == 0)
    else:
        follows = st.session_state.get(_FOLLOWED) == key
    st.session_state[_FOLLOWED] = key if follows and run.is_live else None
    if follows and not run.is_live and not is_open(run):
        select(step=max(0, run.index.num_steps - 1))


def _jump() -> dict[str, Any]:
    """The step, request and block that the browser must show; a new id tells it to move there."""
    now = selection()
    number, before = st.session_state.get(_JUMP, (0, None))
    if before is None or replace(before, other=None) != replace(now, other=None):
        number += 1
        st.session_state[_JUMP] = (number, now)
    return {"id": number, "step": now.step, "request": now.request, "block": now.block}


def run_key(run: Run) -> str:
    """A key per content: a rewritten file is another run."""
    return f"{run.run_id}@{id(run)}"


@st.cache_data(max_entries=16, show_spinner=False)
def _sizes(key: str, _run: Run) -> parts.Sizes:
    return parts.sizes(_run)


@st.cache_data(max_entries=128, show_spinner=False)
def _part(key: str, _run: Run, cut: parts.Sizes, name: str) -> bytes | None:
    return parts.make(_run, cut, name)

"""The runs under way: how far each is, and what it does."""

from __future__ import annotations

import streamlit as st

from app.debugger.drill.held import Held, Progress
from app.debugger.drill.parts import Bar, bars
from app.debugger.page_frame import in_words

EVERY_S = 0.4
NAMES = {
    "yesterday": "Yesterday: the healthy server",
    "today": "Today: one thing is wrong",
    "fix": "With the fix",
}


def progress(held: Held, *, is_alone: bool = True) -> None:
    """Show the present runs until their work has ended; then the page runs again. is_alone: nothing else is shown."""
    _watch(held, is_alone)


@st.fragment(run_every=EVERY_S)
@in_words
def _watch(held: Held, is_alone: bool) -> None:
    entries = held.progress[-1:] if held.job is not None and held.job.turn == "fix" else held.progress
    waiting = [] if len(entries) > 1 or not is_alone else ["today"]
    st.html(
        bars(
            [
                *(_bar(entry) for entry in entries),
                *(Bar(NAMES[name], 0.0, "", "", "waits") for name in waiting),
            ],
            kind="fixes",
        )
    )
    if held.job is None or held.job.is_done:
        st.rerun()


def _bar(run: Progress) -> Bar:
    usual = f"{run.seconds:.0f} of about {run.usual_s:.0f} s"
    if run.ended is not None:
        return Bar(NAMES[run.name], 1.0, "met", "✓", f"ran {run.seconds:.0f} s")
    return Bar(NAMES[run.name], run.share, "", f"{run.share:.0%}", f"{usual} · {run.text}")

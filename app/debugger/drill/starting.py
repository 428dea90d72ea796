"""Choose a drill by its symptom, or read the debrief of an earlier one."""

from __future__ import annotations

import datetime as dt
from random import SystemRandom

import streamlit as st

from app.debugger.drill import held as drills
from app.debugger.page_frame import told
from app.debugger.tabs import tab_id
from interview.drills.drill import Drill, load_drills
from interview.drills.score import MOST
from interview.drills.session import MINUTES, NoSession, read, sessions

LISTED = 8
"""Earlier drills on the page."""
TIMES = (5, 10, 15, 20, 30)
"""Minutes for looks to choose from."""
ANY = "any"


def show() -> str | None:
    """Show the page without a drill. Return the id of the session that was begun or opened."""
    st.caption(
        "A real server on this machine runs under load with one thing wrong. Look at its figures, say what it is and "
        "how sure you are, and apply a fix: the same load runs again. Servers are paced: a step takes 10 ms and "
        "more, as on a larger model."
    )
    left, right = st.columns([1.5, 1], gap="large")
    with left:
        begun = _form()
    with right:
        return _earlier() or begun


def _form() -> str | None:
    every = sorted(load_drills(), key=lambda entry: entry.number)
    if not every:
        st.error("There are no drills. `prep doctor` checks the installation.")
        return None
    first, second = st.columns(2)
    level = first.segmented_control(
        "Level", [ANY, 1, 2, 3], default=ANY, key="drill level", required=True,
        help="1: one look decides. 2: two figures together. 3: the obvious cause is wrong.",
    )  # fmt: skip
    minutes = second.segmented_control(
        "Minutes for looks", TIMES, default=round(MINUTES), key="drill minutes", required=True
    )
    chosen = [entry for entry in every if level in (ANY, entry.level)]
    codes = [entry.code for entry in chosen]
    names = {entry.code: entry for entry in chosen}
    picked = st.selectbox(
        "Symptom",
        [ANY, *codes],
        format_func=lambda code: _words(names[code]) if code in names else f"Random, one of {len(chosen)}",
        key=f"drill symptom {level}",
    )
    st.caption(
        "First the healthy server runs (yesterday), then the faulty one (today), about 15 s each. Cheap looks first: a "
        "cost of 4 loses no point."
    )
    if not st.button("Begin", type="primary", key="drill_begin"):
        return None
    drill = names[picked] if picked in names else SystemRandom().choice(chosen)
    try:
        return drills.begin(drill, float(minutes or MINUTES), tab_id()).session.id
    except OSError as error:
        st.error(
            f"The drill cannot begin: {told(error)}. Free some space, or set PREP_HOME to another folder."
        )
        return None


def _words(drill: Drill) -> str:
    return f"{drill.code} · level {drill.level} · {drill.title}"


def _earlier() -> str | None:
    st.header("Your drills")
    names = sessions()
    if not names:
        st.caption("None yet. Each ends with a score, a debrief and a post-mortem to complete.")
    with st.container(key="drill_earlier"):
        for name in names[:LISTED]:
            if st.button(_line(name), key=f"drill_open_{name}", width="stretch"):
                return name
    st.caption("The same drills in a terminal: `prep drill list`, `prep drill start`, `prep drill report`.")
    return None


def _line(name: str) -> str:
    try:
        events = read(name)
    except (NoSession, ValueError, OSError):
        return f"{name} · damaged"
    when = dt.datetime.fromisoformat(events[0]["at"])
    end = next((event for event in events if event["event"] == "end"), None)
    points = f"{sum(end[part] for part in MOST)} of 100" if end else "not ended"
    return f"{when:%d %b %H:%M} · {name.split('-')[2]} · {points}"

"""The room: choose a drill, watch its runs, look and state, read the debrief."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from app.debugger import session
from app.debugger.drill import ending, on_call, running, starting
from app.debugger.drill import held as drills
from app.debugger.drill.held import Held
from app.debugger.drill.parts import sentence
from app.debugger.tabs import OpenElsewhere, tab_id
from interview.drills.drill import find_drill
from interview.drills.session import NoSession, is_held, read

_KEY = "drill session"
"""Session key: the drill of this tab."""
STYLE = Path(__file__).with_name("drill.css")


def show() -> None:
    st.html(STYLE)
    if _KEY not in st.session_state:
        st.session_state[_KEY] = st.query_params.get("drill")
    name = st.session_state[_KEY]
    if name is None:
        st.title("Drill room")
        if picked := starting.show():
            _open(picked)
        return
    session.add_to_url({"drill": name})
    try:
        _drill(name)
    except OpenElsewhere:
        st.title("Drill room")
        st.info("This drill is open in another tab.")
        with st.container(horizontal=True):
            if st.button(
                "Go on here", key="drill_move", type="primary", help="The other tab then shows this message"
            ):
                drills.HELD.move(name, tab_id())
                st.rerun()
            if st.button("All drills", key="drill_all"):
                _open(None)
    except NoSession as error:
        st.title("Drill room")
        st.error(sentence(error))
        if st.button("All drills", key="drill_all", type="primary"):
            _open(None)


def _drill(name: str) -> None:
    held = drills.HELD.take(name, tab_id())
    if held is None:
        events = read(name)
        drill = find_drill(events[0]["drill"])
        is_over = any(event["event"] == "end" for event in events)
        if not is_over and is_held(name):
            st.title(f"{drill.code} · {drill.title}")
            st.info("This drill runs in a terminal. Go on there: type `help` for its commands.")
            with st.container(horizontal=True):
                if st.button("Look again", key="drill_retry", type="primary"):
                    st.rerun()
                if st.button("All drills", key="drill_all"):
                    _open(None)
            return
        st.title(f"{'Debrief' if is_over else 'Interrupted'} · {drill.code} · {drill.title}")
        if ending.show(name, drill, events):
            _open(None)
        return
    _mind_owner(held)
    held.settle()
    drill = held.session.drill
    st.title(f"{drill.code} · {drill.title}")
    if held.session.faulty is None:
        _runs(held)
    elif on_call.show(held):
        held.session.end()
        drills.release(held)
        st.rerun()


@st.fragment(run_every=2.0)
def _mind_owner(held: Held) -> None:
    """Show that the drill is open elsewhere as soon as another tab has taken it over."""
    if held.owner != tab_id():
        st.rerun()


def _runs(held: Held) -> None:
    """Show both runs under way, or why they could not run."""
    if held.job is None:
        checks = " `prep doctor` checks the installation." if "does not start" in held.problem else ""
        st.error(f"{sentence(held.problem)}{checks}")
        leaves = st.button("All drills", key="drill_all", type="primary")
    else:
        st.caption("The same load runs on both servers. Then it is your turn, and the clock starts.")
        running.progress(held)
        leaves = st.button("Stop", key="drill_stop", help="Ends the servers, and this drill")
    if leaves:
        drills.release(held)
        _open(None)


def _open(name: str | None) -> None:
    """Show another drill in this tab; None: the list."""
    st.session_state[_KEY] = name
    st.rerun()

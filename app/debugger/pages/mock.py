"""Page Mock: a mock interview. The interviewer asks for predictions, runs experiments, and continues from the gap."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from app.debugger import session
from app.debugger.mock import conversation, ending, starting
from app.debugger.mock import held as interviews
from app.debugger.page_frame import told
from app.debugger.tabs import tab_id
from interview.mock.scenario import role_name
from interview.mock.session import SessionError, read

_KEY = "mock interview"
"""Session key: the interview of this tab."""
STYLE = Path(__file__).resolve().parents[1] / "mock" / "mock.css"


def show() -> None:
    st.html(STYLE)
    if _KEY not in st.session_state:
        st.session_state[_KEY] = st.query_params.get("interview")
    name = st.session_state[_KEY]
    if name is None:
        st.title("Mock interview")
        _open(starting.show())
        return
    session.add_to_url({"interview": name})
    try:
        _interview(name)
    except SessionError as error:
        st.title("Mock interview")
        st.error(f"{told(error)}. Next: {told(error.next_step)}")
        with st.container(horizontal=True):
            if st.button("Try again", key="mock_retry", type="primary"):
                st.rerun()
            if st.button("All interviews", key="mock_all"):
                _open(None, leaves=True)


def _interview(name: str) -> None:
    saved = read(name)
    if saved.is_over:
        st.title("Report")
        ending.show(name)
        return
    held = interviews.take(name, tab_id())
    spec = held.session.spec
    st.title(f"Mock interview · {role_name(spec.role)}, {spec.level} · {spec.minutes} min")
    if conversation.show(held):
        interviews.release(held)
        _open(None, leaves=True)


def _open(name: str | None, *, leaves: bool = False) -> None:
    """Show another interview in this tab; none with `leaves`."""
    if name is not None or leaves:
        st.session_state[_KEY] = name
        st.rerun()

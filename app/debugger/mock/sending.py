"""The frame of a panel, and sending a reply."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import streamlit as st

from app.debugger.mock.held import Held
from app.debugger.page_frame import told
from quizzes.grading import ParseError


def panel_name(held: Held) -> str:
    """Return the CSS class of the present turn's panel, which the script of `desk.js` looks for."""
    return f"mock_answer_{len(held.session.past)}"


@contextmanager
def panel(held: Held, kind: str = "") -> Iterator[None]:
    with st.container(key=panel_name(held), border=True), st.container(key=f"mock_kind_{kind or 'panel'}"):
        yield


def send(held: Held, reply: dict[str, Any]) -> None:
    """Keep the reply and show the next turn; what cannot be used is a sentence, and nothing typed is lost."""
    try:
        held.reply(reply)
    except ParseError as error:
        st.error(told(error))
    except OSError as error:
        st.error(
            f"The reply was not kept: {told(error.strerror or error)}. Free some space, then send it again."
        )
    else:
        st.rerun()

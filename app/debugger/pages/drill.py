"""Page Drill room: an incident on a real server of this machine. `prep drill` in the browser."""

from __future__ import annotations

from importlib.util import find_spec

import streamlit as st

from interview.drills import LIBRARIES


def show() -> None:
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        st.title("Drill room")
        st.error(
            f"Drills need {', '.join(missing)}, not installed here. Next: `./prep drill list` installs them, or "
            "`pip install -e '.[serve]'`; then start `prep app` again."
        )
        return
    from app.debugger.drill import room

    room.show()

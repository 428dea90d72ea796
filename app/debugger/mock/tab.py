"""The identity of a browser tab."""

from __future__ import annotations

from streamlit.runtime.scriptrunner import get_script_run_ctx


def tab_id() -> str:
    """Return the id of the tab that this script runs for; a reloaded tab is a new one."""
    context = get_script_run_ctx()
    return "" if context is None else context.session_id

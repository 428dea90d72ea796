"""An interview that is over: its report on the page, and as a file."""

from __future__ import annotations

import streamlit as st

from app.debugger.mock import held as interviews
from app.debugger.page_frame import told
from interview.mock import report
from interview.mock.finish import finish
from interview.mock.report.judging import Verdicts, configured, judge
from interview.mock.session import Session, SessionError, sessions
from quizzes.free_text.endpoint import JudgeError
from quizzes.state import State


def show(session_id: str) -> None:
    """Show the report of an interview; it is made once and kept beside the log."""
    try:
        result = _report(session_id)
    except SessionError as error:
        st.error(f"{told(error)}. Next: {told(error.next_step)}")
        return
    text, page = report.as_markdown(result), report.as_html(result)
    with st.container(horizontal=True, vertical_alignment="center"):
        name = f"mock-{session_id[-6:].lower()}"
        st.download_button(
            "Download as HTML", page, f"{name}.html", "text/html", type="primary", key="mock_html"
        )
        st.download_button("as Markdown", text, f"{name}.md", "text/markdown", key="mock_markdown")
        if st.button("Another interview", key="mock_again"):
            st.session_state.pop("mock interview", None)
            st.rerun()
    with st.container(key="mock_report"):
        theme = (
            st.get_option("theme.base") or st.context.theme.type
        )  # the latter is wrong in a page just opened
        st.iframe(report.as_html(result, theme=theme), tab_index=0)


def _report(session_id: str) -> report.Report:
    """Return the report; the first time it is made, and the learner's state gets the answers and cards."""
    kept = report.load(session_id)
    if kept is not None and kept.finished:
        return kept
    session = Session.replay(session_id, interviews.scenarios())
    judged = _judged(session)
    try:
        with State.open() as state:
            return finish(session, state, judged=judged)
    except OSError as error:  # StateError is one
        st.warning(f"The report is shown, but it was not kept: {told(error)}")
        return report.make(session, sessions(), judged=judged)


def _judged(session: Session) -> Verdicts | None:
    """Return the marks of a judge that is configured and passed its test."""
    try:
        settings = configured()
        if settings is None:
            return None
        with st.spinner(f"Asking the judge {told(settings.model)}", show_time=True):
            return judge(session, settings)
    except JudgeError as error:
        st.warning(f"No marks from the judge: {told(error)}")
        return None

"""Panels of an incident: the run of its drill on this machine, and the form of a hypothesis."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app.debugger.mock.held import Held
from app.debugger.mock.sending import panel, send
from app.debugger.mock.texts import markdown
from app.debugger.page_frame import in_words
from app.debugger.tabs import Job
from interview.drills.figures import FIGURES
from interview.drills.score import MOST_NAMED
from interview.mock.incident import RUN_S
from interview.mock.turns import Hypothesis, RunDrill

STOP_S = 8.0


def drill(held: Held, want: RunDrill) -> None:
    """Run the servers of a drill in child processes; what comes out is the reply."""
    job = held.job
    if job is None or job.turn != held.turn.id:
        job = held.job = _Run(held.turn.id, want)
    if job.is_done:
        send(held, _reply_of(job))
        return
    with panel(held, "run"):
        st.markdown("Servers run on this machine")
        _watch(job, RUN_S / 2 if want.args["fix"] else RUN_S)


class _Run(Job):
    """A run of a drill in child processes, with the text of its progress."""

    def __init__(self, turn: str, want: RunDrill) -> None:
        from app.debugger.drill.stage_process import StageProcess
        from interview.mock.live import live  # needs the libraries of servers

        self.text, runs = "starting", StageProcess()
        super().__init__(turn, lambda: live(want, self._tell, runs.run), runs.stop)

    def _tell(self, text: str) -> None:
        self.text = text


def _reply_of(job: Job) -> dict[str, Any]:
    if job.is_stopped:
        return {"failed": "you stopped it"}
    if job.error is not None:
        return {"failed": str(job.error) or type(job.error).__name__}
    reply: dict[str, Any] = job.result
    return reply


@st.fragment(run_every=0.4)
@in_words
def _watch(job: Job, usual_s: float) -> None:
    text = job.text if isinstance(job, _Run) else ""
    share = min(0.97, job.seconds / usual_s)
    st.progress(share, f"{job.seconds:.0f} of about {usual_s:.0f} s · {text}; your clock stands still")
    if st.button("Stop the run", key=f"mock {job.turn} stop"):
        job.stop(STOP_S)
    if job.is_done:
        st.rerun()


def hypothesis(held: Held, want: Hypothesis) -> None:
    """Ask for the cause, the confidence and the figures that decide."""
    key, texts = f"mock {held.turn.id}", dict(want.causes)
    with panel(held), st.form(f"{key} hypothesis", border=False, enter_to_submit=False):
        cause = st.radio(
            "Cause",
            list(texts),
            index=None,
            format_func=lambda name: markdown(texts[name]),
            key=f"{key} cause",
        )
        evidence = []
        if want.figures:
            evidence = st.multiselect(
                "Figures that decide",
                want.figures,
                format_func=lambda name: FIGURES[name].says,
                max_selections=MOST_NAMED,
                select_all=False,
                key=f"{key} evidence",
            )
        sure = st.slider("How sure are you? (%)", 1, 99, 50, key=f"{key} sure", width=440)
        if st.form_submit_button("That is my hypothesis", type="primary", shortcut="ctrl+enter"):
            send(held, {"cause": cause, "confidence": sure, "evidence": evidence})

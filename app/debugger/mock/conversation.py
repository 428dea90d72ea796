"""An interview in progress: conversation and panel at the left; clock, stages, problem and whiteboard at the right."""

from __future__ import annotations

import streamlit as st

from app.debugger.mock import replies, transcript
from app.debugger.mock.desk import clock, desk, whiteboard
from app.debugger.mock.held import Held
from app.debugger.mock.texts import STAGES, markdown
from interview.mock.conduct import line_of
from interview.mock.turns import Mark, RunExperiment

SHOWN_STAGES = ("warm", "core", "quantify", "experiment", "design", "curveball", "reverse", "self")


def show(held: Held) -> bool:
    """Show the interview; return whether the candidate leaves."""
    left, right = st.columns([2.6, 1], gap="large")
    with right, st.container(key="mock_side"):
        leaves = _side(held)
    with left:
        transcript.show(held)
        if held.clock.is_paused:
            st.info("The clock stands still. Continue brings your question and what you typed back.")
        else:
            replies.show(held)
    desk(held)
    return leaves


def _side(held: Held) -> bool:
    clock(held)
    with st.container(horizontal=True):
        _pause(held)
        leaves = st.button(
            "Leave", key="mock_leave", help="Everything is kept; continue later, here or in a terminal"
        )
    st.html(stages(held))
    brief = _brief(held)
    if brief:
        with st.expander("The problem", expanded=True, key="mock_problem"):
            st.markdown(markdown(brief))
            facts = [
                fact["told"] for asked in held.session.talk.asked for fact in asked.clarified if fact["fact"]
            ]
            if facts:
                st.caption("You asked, and know:")
                st.markdown("\n".join(f"- {markdown(fact)}" for fact in dict.fromkeys(facts)))
    with st.expander("Whiteboard", expanded=bool(held.drawing), key="mock_board_frame"):
        whiteboard(held)
    return leaves


def _pause(held: Held) -> None:
    if held.clock.is_paused:
        if st.button("Continue", key="mock_continue", type="primary"):
            held.go_on()
            st.rerun()
    elif st.button("Pause", key="mock_pause", disabled=not held.is_timed):
        held.pause()
        st.rerun()


def stages(held: Held) -> str:
    """Return the stages of the interview as HTML, the present one marked."""
    spec = held.session.spec
    has: set[str] = {step.stage for d in held.session.scenarios[:1] for step in line_of(d, spec.minutes)}
    has |= {"warm"} if spec.warm else set()
    names = [name for name in SHOWN_STAGES if name in has or name == "self"]
    now = "core" if held.turn.stage == "probe" else held.turn.stage
    place = names.index(now) if now in names else -1
    items = (
        f"<li class='{'now' if at == place else 'done' if at < place else ''}'>{STAGES[name]}</li>"
        for at, name in enumerate(names)
    )
    return f"<ol class='mock-stages' aria-label='Stages'>{''.join(items)}</ol>"


def _brief(held: Held) -> str:
    """Return the scenario's brief once the interviewer has told it."""
    name = held.turn.id.partition("/")[0]
    drawn = next((scenario for scenario in held.session.scenarios if scenario.scenario.id == name), None)
    if drawn is None or isinstance(held.turn.want, RunExperiment | Mark) and not held.session.past:
        return ""
    return drawn.text(drawn.scenario.brief)

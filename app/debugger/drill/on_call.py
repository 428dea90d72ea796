"""A drill after its runs: symptom, objective and looks at the left; clock, costs, hypothesis and fix at the right."""

from __future__ import annotations

from html import escape
from typing import Any

import streamlit as st

from app.debugger.charts.clock import clock
from app.debugger.drill import looking, running
from app.debugger.drill.held import Held
from app.debugger.drill.parts import Bar, bars, sentence
from app.debugger.page_frame import told
from engine.config import ConfigError
from interview.drills.debrief import named
from interview.drills.drill import causes
from interview.drills.figures import FIGURES
from interview.drills.score import CHEAP, MOST, MOST_NAMED
from prep_common.text import counted

OWN = 0
"""The option for a fix of the learner's own."""


def show(held: Held) -> bool:
    """Show the drill; return whether the learner ends it."""
    left, right = st.columns([2.05, 1], gap="medium")
    with right, st.container(key="drill_side"):
        _time(held)
        _hypothesis(held)
        _fix(held)
        ends = st.button(
            "End, and see the score",
            key="drill_end",
            width="stretch",
            disabled=held.job is not None,
            help="What was stated and applied so far is scored",
        )
    with left:
        _objective(held)
        looking.choose(held)
        looking.show(held)
    return ends


def _objective(held: Held) -> None:
    session = held.session
    assert session.faulty and session.healthy
    objective = session.drill.objective
    st.html(
        bars(
            [
                Bar("today", session.faulty.good),
                Bar("yesterday", session.healthy.good, "yesterday"),
            ],
            mark=objective.share,
        )
    )
    st.caption(told(f"Good requests. Objective (line): {objective.in_words}"))


def _time(held: Held) -> None:
    session = held.session
    limit = 60 * session.minutes
    clock(
        "Time for looks",
        limit - session.seconds_left,
        limit,
        key="drill clock",
        runs=held.job is None,
        why="" if held.job is None else "stands still while the load runs again",
        over="over: state a cause, apply a fix, or end",
    )
    lost = MOST["looks"] - max(0, MOST["looks"] - max(0, session.cost - CHEAP))
    st.html(
        f'<div class="drill-count" role="status">{escape(counted(len(session.looked), "look"))} · cost '
        f"<b>{session.cost}</b> · {escape(counted(lost, 'point'))} lost</div>"
    )


def _widget(held: Held, name: str, value: Any = None) -> str:
    """Return the key of a widget, which keeps its value through a reload of the tab."""
    key = f"drill {held.session.id} {name}"
    if key not in st.session_state:
        st.session_state[key] = held.draft.get(name, value)
    return key


def _hypothesis(held: Held) -> None:
    """Show the form of the hypothesis, or the stated one with a button to change it: the last one counts."""
    session, draft = held.session, held.draft
    st.header("Hypothesis")
    if session.guessed is not None and not held.changes:
        cause, sure, evidence = session.guessed
        st.html(
            f'<div class="drill-said" role="status">Stated, {sure} % sure: {escape(causes()[cause])} Because of '
            f"{escape(named(evidence))}.</div>"
        )
        has_worked = session.fixed is not None and session.fixed[1].is_met
        if not has_worked and st.button("Change it", key="drill_change"):
            held.changes = True
            st.rerun()
        return
    draft["cause"] = st.radio(
        "What is wrong?",
        session.drill.hypotheses,
        index=None,
        format_func=lambda name: told(causes()[name]),
        key=_widget(held, "cause"),
        label_visibility="collapsed",
    )
    seen = [row.figure for row in looking.figures(held)]
    draft["evidence"] = st.multiselect(
        "Figures that decide",
        seen,
        format_func=lambda name: FIGURES[name].says,
        max_selections=MOST_NAMED,
        select_all=False,
        key=_widget(held, "evidence", []),
        placeholder="figures of your looks" if seen else "take a look first",
        disabled=not seen,
    )
    draft["sure"] = st.slider("How sure are you? (%)", 1, 99, key=_widget(held, "sure", 50))
    if st.button("State it", key="drill_state", type="primary"):
        try:
            if draft["cause"] is None:
                raise ConfigError("choose a cause")
            session.guess(draft["cause"], draft["sure"], draft["evidence"])
        except ConfigError as error:
            st.error(sentence(error))
        else:
            held.changes = False
            st.rerun()


def _fix(held: Held) -> None:
    session = held.session
    st.header("Fix")
    if held.fixes:
        st.html(
            bars(
                [
                    Bar(words, result.good, "met" if result.is_met else "", "", _met(result.is_met))
                    for words, result in held.fixes
                ],
                mark=session.drill.objective.share,
                kind="fixes",
            )
        )
    if held.problem:
        st.error(sentence(held.problem))
    if held.job is not None:
        running.progress(held, is_alone=False)
        return
    says = {number: fix.say for number, fix in enumerate(session.drill.fixes, 1)} | {OWN: "Other options …"}
    held.draft["fix"] = wanted = st.radio(
        "What do you change?",
        list(says),
        index=None,
        format_func=lambda number: told(says[number]),
        key=_widget(held, "fix"),
        label_visibility="collapsed",
    )
    own = ""
    if wanted == OWN:
        own = held.draft["own"] = st.text_input(
            "Options of `prep serve`", key=_widget(held, "own", ""), placeholder="max-num-seqs=8"
        )
    about = f"about {held.usual_s:.0f} s"
    if st.button(f"Apply, and run the load again ({about})", key="drill_apply"):
        _apply(held, own.strip() if wanted == OWN else wanted)


def _met(is_met: bool) -> str:
    return "objective met" if is_met else "objective missed"


def _apply(held: Held, wanted: int | str | None) -> None:
    try:
        if not wanted:
            raise ConfigError("choose a fix, or give options such as max-num-seqs=8")
        held.session.words_of(wanted)
    except ConfigError as error:
        st.error(sentence(error))
    else:
        held.apply(wanted)
        st.rerun()

"""One panel per want of `interview/mock/turns.py`: what the candidate replies with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st

from app.debugger.mock.fields import ask, form
from app.debugger.mock.held import Held
from app.debugger.mock.incident import drill, hypothesis
from app.debugger.mock.running import program, run
from app.debugger.mock.sending import panel, send
from app.debugger.mock.texts import markdown
from interview.mock.assessment import rubric, titles
from interview.mock.turns import (
    Ask,
    Continue,
    Form,
    Hypothesis,
    Mark,
    Menu,
    Program,
    Prose,
    Rate,
    RunDrill,
    RunExperiment,
    Want,
)

MARKS = (
    ("hit", "I said it"),
    ("partial", "Partly"),
    ("miss", "I did not say it"),
    ("contradicted", "I said the opposite"),
)


def show(held: Held) -> None:
    """Show the panel for the present turn; a reply goes on to the next one."""
    PANELS[type(held.turn.want)](held, held.turn.want)


def go_on(held: Held, want: Continue) -> None:
    with panel(held):
        st.caption(
            "The clock starts with the first turn. Everything is kept: you can leave and continue later."
        )
        if st.button("Begin", key=f"mock {held.turn.id} begin", type="primary"):
            send(held, {})


def prose(held: Held, want: Prose) -> None:
    asked = held.asked
    with panel(held):
        key = f"mock text {asked.key}"
        with st.form(f"mock {asked.key} prose", border=False):
            text = st.text_area(
                "Your answer",
                key=key,
                height=210,
                placeholder="Speak as you would: whole sentences, numbers.",
            )
            with st.container(horizontal=True, vertical_alignment="center"):
                sent = st.form_submit_button("Answer", type="primary", shortcut="ctrl+enter")
                passed = st.form_submit_button("No answer")
                st.html(
                    f"<span class='mock-words' data-lo='{want.lo}' data-hi='{want.hi}'>usually {want.lo} to "
                    f"{want.hi} words</span>",
                    width="content",
                )
        with st.form(f"mock {held.turn.id} clarify", border=False, enter_to_submit=True):
            with st.container(horizontal=True, vertical_alignment="bottom"):
                question = st.text_input(
                    "Ask for a fact before you answer",
                    key=f"mock {held.turn.id} question",
                    placeholder="What is the latency target?",
                )
                asks = st.form_submit_button("Ask")
        if asks and not question.strip():
            st.warning("Type a question first, such as: what is the latency target?")
        elif asks:
            send(held, {"clarify": question})
        elif sent and not text.strip():
            st.warning("The answer is empty. Write it, or choose No answer.")
        elif sent:
            send(held, {"text": text})
        elif passed:
            send(held, {"text": ""})


def menu(held: Held, want: Menu) -> None:
    with panel(held, "choices"):
        texts = dict(want.options)
        for place, name in want.numbers.items():
            chosen = st.button(
                markdown(texts[name]),
                key=f"mock {held.turn.id} {name}",
                shortcut=str(place) if place < 10 else None,
                width="stretch",
            )
            if chosen:
                send(held, {"pick": name})


def mark(held: Held, want: Mark) -> None:
    with panel(held):
        st.markdown(f"**{markdown(want.point.say)}**")
        if want.closest:
            st.caption("Your closest sentence:")
            st.html(f"<blockquote class='mock-quote'>{_plain(want.closest)}</blockquote>")
        else:
            st.caption("None of your sentences shares a word with it.")
        if want.doubt:
            st.caption(f"{want.doubt.capitalize()}. A mark that you said it does not count.")
        with st.container(horizontal=True, key="mock_marks"):
            for place, (name, words) in enumerate(MARKS, 1):
                if st.button(words, key=f"mock {held.turn.id} {name}", shortcut=str(place)):
                    send(held, {"mark": name})


def rate(held: Held, want: Rate) -> None:
    with panel(held):
        with st.form(f"mock {held.turn.id} rate", border=False, enter_to_submit=False):
            st.caption("1 weak · 3 solid · 5 excellent, for this level. An axis may be left out.")
            ratings = {}
            for axis in want.axes:
                with st.container(horizontal=True, vertical_alignment="center", key=f"mock_rate_{axis}"):
                    st.markdown(f"**{titles()[axis]}**", width=190)
                    ratings[axis] = st.radio(
                        titles()[axis],
                        (1, 2, 3, 4, 5),
                        index=None,
                        horizontal=True,
                        key=f"mock {held.turn.id} {axis}",
                        label_visibility="collapsed",
                        width="content",
                    )
            sent = st.form_submit_button("See the report", type="primary", shortcut="ctrl+enter")
        with st.expander("What the numbers mean"):
            st.markdown(_anchors(want.axes))
        if sent:
            send(held, {"ratings": {axis: value for axis, value in ratings.items() if value is not None}})


def _anchors(axes: tuple[str, ...]) -> str:
    parts = []
    for axis in axes:
        anchors = rubric()["axes"][axis]["anchors"]
        lines = "\n".join(f"- {value}: {markdown(str(text))}" for value, text in anchors.items())
        parts.append(f"**{titles()[axis]}**\n\n{lines}")
    return "\n\n".join(parts)


def _plain(text: str) -> str:
    from app.debugger.mock.texts import plain

    return plain(text)


PANELS: dict[type[Want], Callable[[Held, Any], None]] = {
    Continue: go_on,
    Prose: prose,
    Ask: ask,
    Form: form,
    Menu: menu,
    Mark: mark,
    RunExperiment: run,
    RunDrill: drill,
    Hypothesis: hypothesis,
    Program: program,
    Rate: rate,
}

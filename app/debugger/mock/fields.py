"""Panels with fields: numbers with intervals, options, a confidence; the candidate's own numbers and designs."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app.debugger.mock.held import Held
from app.debugger.mock.sending import panel, send
from app.debugger.mock.texts import markdown
from app.debugger.page_frame import told
from common.text import figure
from interview.mock.scenario import Pick
from interview.mock.turns import Ask, Form
from quizzes.grading import ParseError, check_reply
from quizzes.question import Answer

COLUMNS = 3
"""Fields side by side."""


def ask(held: Held, want: Ask) -> None:
    """Numbers and options. Unreadable ones are named beside their field, and all fields keep what was typed."""
    run = want.instance.question.experiment
    if run is not None:
        held.warm(run.run)
    key = f"mock {held.turn.id}"
    places: dict[str, Any] = {}
    with panel(held):
        if want.instance.question.exhibit:
            st.code(want.instance.render(want.instance.question.exhibit), language=None)
        with st.form(f"{key} ask", border=False, enter_to_submit=len(want.keys) == 1):
            replies = _replies(want, key, places)
            sure = _confidence(key) if want.confidence else None
            with st.container(horizontal=True):
                sent = st.form_submit_button("Answer", type="primary", shortcut="ctrl+enter")
                passed = st.form_submit_button("No answer")
        if passed:
            send(held, {"pass": True})
        elif sent:
            problems = problems_of(want, replies)
            for name, problem in problems.items():
                places[name].error(told(problem), icon=None)
            if not problems:
                send(held, {"replies": replies, "confidence": sure})


def problems_of(want: Ask, replies: dict[str, str]) -> dict[str, str]:
    """Return what is wrong with the replies, by key."""
    found = {}
    for key in want.keys:
        if key in replies or not key.endswith(".interval"):
            try:
                check_reply(want.instance, key, replies.get(key, ""))
            except ParseError as error:
                found[key] = str(error)
    return found


def _replies(want: Ask, key: str, places: dict[str, Any]) -> dict[str, str]:
    answers = {answer.id: answer for answer in want.instance.question.answers}
    replies: dict[str, str] = {}
    for name in want.keys:
        if name.endswith(".interval"):
            continue
        if name == "choice":
            replies[name] = _options(want, key)
        elif name in answers:
            replies |= _value(want, answers[name], key, places, has_interval=f"{name}.interval" in want.keys)
        else:
            replies[name] = st.text_input("The numbers of the options, in order", key=f"{key} {name}")
        places[name] = st.empty()
    return replies


def _value(
    want: Ask, answer: Answer, key: str, places: dict[str, Any], *, has_interval: bool
) -> dict[str, str]:
    """Show the field of an answer, and both ends of its interval."""
    label = markdown(want.instance.asked(answer.id))
    if answer.type == "bool":
        picked = st.radio(label, ("yes", "no"), index=None, horizontal=True, key=f"{key} {answer.id}")
        return {answer.id: picked or ""}
    if not has_interval:
        return {answer.id: st.text_input(label, key=f"{key} {answer.id}", width=360)}
    middle, low, high = st.columns([2, 1, 1], vertical_alignment="bottom")
    found = {answer.id: middle.text_input(label, key=f"{key} {answer.id}")}
    percent = f"{100 * (answer.interval or 0.8):.0f} %"
    ends = [
        place.text_input(f"{percent}: {words}", key=f"{key} {answer.id} {words}")
        for place, words in ((low, "from"), (high, "to"))
    ]
    if any(end.strip() for end in ends):
        found[f"{answer.id}.interval"] = " .. ".join(end.strip() for end in ends)
    places[f"{answer.id}.interval"] = st.empty()
    return found


def _options(want: Ask, key: str) -> str:
    """Show the options; return the numbers of those that are chosen."""
    instance = want.instance
    texts = [markdown(instance.render(choice.text)) for choice in instance.choices()]
    if instance.question.kind == "multi":
        ticked = [n for n, text in enumerate(texts, 1) if st.checkbox(text, key=f"{key} option {n}")]
        return ", ".join(map(str, ticked)) or "none"
    picked = st.radio(
        "Choose one",
        range(len(texts)),
        index=None,
        format_func=texts.__getitem__,
        key=f"{key} choice",
        label_visibility="collapsed" if len(want.keys) == 1 else "visible",
    )
    return "" if picked is None else str(picked + 1)


def _confidence(key: str) -> int:
    """Show the slider. Untouched it says 50: as likely right as wrong."""
    label = "How sure are you that all of it is right? (%, 90: nine of ten such answers are)"
    return int(st.slider(label, 1, 99, 50, key=f"{key} sure", width=440))


def form(held: Held, want: Form) -> None:
    """Fields that the candidate sets: own numbers, or a design that can be checked before it is committed."""
    key = f"mock {held.turn.id}"
    with panel(held):
        if want.can_try:
            st.caption("Check runs the formula and the simulation. Commit decides.")
        elif len(want.fields) > 2:
            st.caption("The last try: what you commit counts.")
        with st.form(f"{key} form", border=False, enter_to_submit=False):
            values = _fields(want, key)
            with st.container(horizontal=True):
                checked = want.can_try and st.form_submit_button("Check", shortcut="ctrl+enter")
                label = "Commit" if want.can_try or len(want.fields) > 2 else "That is my choice"
                shortcut = "ctrl+shift+enter" if want.can_try else "ctrl+enter"
                committed = st.form_submit_button(label, type="primary", shortcut=shortcut)
        if checked or committed:
            missing = [pick.ask for pick in want.fields if values[pick.id] is None]
            if missing:
                st.error(f"Give a value for {told(', '.join(missing))}.")
            else:
                send(held, {"values": values, "commit": bool(committed)})


def _fields(want: Form, key: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    columns: list[Any] = []
    for place, pick in enumerate(want.fields):
        if place % COLUMNS == 0:
            columns = st.columns(COLUMNS, vertical_alignment="bottom")
        with columns[place % COLUMNS]:
            values[pick.id] = _field(pick, want.values.get(pick.id), f"{key} {pick.id}")
    return values


def _field(pick: Pick, value: Any, key: str) -> Any:
    label = markdown(pick.ask)
    if pick.options:
        index = pick.options.index(str(value)) if str(value) in pick.options else None
        return st.selectbox(label, pick.options, index, key=key)
    assert pick.lo is not None and pick.hi is not None
    unit = f" {pick.unit}" if pick.unit else ""
    label += f" ({figure(_bare(pick.lo))} to {figure(_bare(pick.hi))}{markdown(unit)})"
    start = None if value is None else min(max(float(value), pick.lo), pick.hi)
    if pick.whole:
        whole = None if start is None else int(start)
        return st.number_input(label, int(pick.lo), int(pick.hi), whole, step=1, key=key)
    return st.number_input(label, float(pick.lo), float(pick.hi), start, format="%g", key=key)


def _bare(value: float) -> float:
    """Return a whole number without its point."""
    return int(value) if value == int(value) else value

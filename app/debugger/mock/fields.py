"""Panels with fields: answers with their confidence; the candidate's own numbers and designs."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app.debugger.mock.held import Held
from app.debugger.mock.sending import panel, send
from app.debugger.mock.texts import markdown
from app.debugger.page_frame import told
from app.debugger.reply_fields import confidence, problems_of, reply_fields
from interview.mock.evidence import STAKES
from interview.mock.scenario import Pick
from interview.mock.turns import Ask, Form
from prep_common.text import figure

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
            replies = reply_fields(want.instance, want.keys, key, places)
            sure = confidence(key, STAKES) if want.confidence else None
            with st.container(horizontal=True):
                sent = st.form_submit_button("Answer", type="primary", shortcut="ctrl+enter")
                passed = st.form_submit_button("No answer")
        if passed:
            send(held, {"pass": True})
        elif sent:
            problems = problems_of(want.instance, want.keys, replies)
            for name, problem in problems.items():
                places[name].error(told(problem), icon=None)
            if not problems:
                send(held, {"replies": replies, "confidence": sure})


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

"""The conversation so far: the last turns in full, older ones folded."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app.debugger.mock import charts
from app.debugger.mock.held import Held
from app.debugger.mock.texts import STAGES, markdown, plain
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
    RunExperiment,
    Turn,
)
from prep_common.text import figure

KEPT = 2
"""Exchanges before the present turn that stay readable, beside the question of the step."""
MARK_WORDS = {"hit": "said it", "partial": "partly", "miss": "not said", "contradicted": "said the opposite"}
Exchange = tuple[Turn, dict[str, Any]]


def show(held: Held) -> None:
    """Show what was said before the present turn."""
    past, coach = held.session.past, held.session.spec.coach
    shown = visible(past, held.turn)
    folded = [place for place in range(len(past)) if place not in shown]
    if folded:
        with st.expander(f"Earlier: {len(folded)} turn{'s' if len(folded) > 1 else ''}", key="mock_earlier"):
            for place in folded:
                exchange(past[place], str(place), coach=coach)
    for place in shown:
        exchange(past[place], str(place), coach=coach)
    say(held.turn, str(len(past)), coach=coach, is_latest=True)


def visible(past: list[Exchange], turn: Turn) -> list[int]:
    """Return the places of the exchanges that stay open: where the step began, its prose, and the last ones."""
    key = turn.id.partition("#")[0]
    of_step = [place for place, (past_turn, _) in enumerate(past) if past_turn.id.partition("#")[0] == key]
    telling = [place for place, (past_turn, _) in enumerate(past) if _says_something(past_turn)]
    prose = [place for place in of_step if isinstance(past[place][0].want, Prose)]  # to be marked later
    return sorted({*of_step[:1], *prose, *telling[-KEPT:]})


def _says_something(turn: Turn) -> bool:
    """Return whether an exchange is worth its place: silent runs and marks are not."""
    return bool(turn.chart or turn.before) or not isinstance(turn.want, RunExperiment | Mark)


def exchange(past: Exchange, key: str, *, coach: bool) -> None:
    turn, reply = past
    say(turn, key, coach=coach, is_latest=False)
    answer = replied(turn, reply)
    if answer:
        st.html(f"<div class='mock-you'><div>{answer}</div></div>")


def say(turn: Turn, key: str, *, coach: bool, is_latest: bool) -> None:
    """Show the interviewer's words; what a run showed has a bubble of its own.

    All bubbles have four elements: while a page is drawn anew, the browser keeps those that are not yet replaced."""
    words, now = turn.say.removeprefix(turn.before).strip(), "now" if is_latest else "then"
    if turn.before or turn.chart:
        with st.container(key=f"mock_said_told_{key}", gap="xsmall"):
            charts.show_run(turn.chart or {}, f"mock chart {key}", coach=coach, is_latest=is_latest)
            st.markdown(markdown(turn.before))
    if words:
        with st.container(key=f"mock_said_{now}_{key}", gap="xsmall"):
            minutes = f" · about {turn.minutes:g} min" if turn.minutes else ""
            stage = STAGES.get(turn.stage, "") + minutes if turn.began else ""
            st.html(f"<span class='mock-stage'>{stage}</span>") if stage else st.empty()
            st.empty()
            st.empty()
            st.markdown(markdown(words))


def replied(turn: Turn, reply: dict[str, Any]) -> str:
    """Return a reply in words, as HTML."""
    want = turn.want
    if isinstance(want, Continue):
        return ""
    if isinstance(want, Prose):
        text = plain(reply.get("clarify") or reply.get("text") or "") or "<i>no answer</i>"
        return f"<span class='mock-asks'>You ask: </span>{text}" if "clarify" in reply else text
    if isinstance(want, Ask):
        return _asked(want, reply)
    if isinstance(want, Form):
        names = {pick.id: pick for pick in want.fields}
        values = [
            f"{plain(names[name].ask)} <b>{plain(figure(value))}</b> {plain(names[name].unit)}".strip()
            for name, value in reply["values"].items()
            if name in names
        ]
        end = "" if not want.can_try else "<br>commit" if reply.get("commit") else "<br>check it"
        return " · ".join(values) + end
    if isinstance(want, Menu):
        return plain(dict(want.options).get(reply["pick"], reply["pick"]))
    if isinstance(want, Hypothesis):
        cause, named = dict(want.causes)[reply["cause"]], ", ".join(reply["evidence"]) or "no figure"
        return f"{plain(cause)} <b>{reply['confidence']} % sure</b>, because of {plain(named)}"
    if isinstance(want, Mark):
        return f"{plain(want.point.say)} <b>{MARK_WORDS[reply['mark']]}</b>"
    if isinstance(want, RunExperiment):
        return ""
    if isinstance(want, Program):
        return f"<i>a program, checks passed: {len(reply['passed'])}, failed: {len(reply['failed'])}</i>"
    assert isinstance(want, Rate)
    return ", ".join(f"{axis} {value}" for axis, value in reply["ratings"].items())


def _asked(want: Ask, reply: dict[str, Any]) -> str:
    if reply.get("pass"):
        return "<i>no answer</i>"
    instance = want.instance
    asks = {answer.id: (answer.ask or answer.id.replace("_", " "), answer.unit or "") for answer in
            instance.question.answers}  # fmt: skip
    replies = reply["replies"]
    parts = []
    for key, text in replies.items():
        if key == "choice":
            shown = [choice.id for choice in instance.choices()]
            texts = {choice.id: instance.render(choice.text) for choice in instance.choices()}
            from quizzes.grading.options import pick

            parts.append("; ".join(plain(texts[option]) for option in pick(text, shown, key=key, none=True)))
        elif not key.endswith(".interval"):
            ask, unit = asks.get(key, (key, ""))
            unit = unit if text.strip()[-1:].isdecimal() else ""
            interval = replies.get(f"{key}.interval", "")
            between = f" ({plain(interval)})" if interval else ""
            parts.append(f"{plain(instance.render(ask))}: <b>{plain(text)}</b> {plain(unit)}{between}")
    if reply.get("confidence") is not None:
        parts.append(f"{reply['confidence']} % sure")
    return " · ".join(parts)

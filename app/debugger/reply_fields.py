"""Fields for the answer to a question of the bank: numbers with intervals, options, an order, a confidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from app.debugger.mock.texts import markdown
from quizzes.grading import ParseError, check_reply
from quizzes.instance import Instance
from quizzes.question import Answer


def problems_of(instance: Instance, keys: Sequence[str], replies: dict[str, str]) -> dict[str, str]:
    """Return what is wrong with the replies, by key."""
    problems = {}
    for key in keys:
        if key in replies or not key.endswith(".interval"):
            try:
                check_reply(instance, key, replies.get(key, ""), replies)
            except ParseError as error:
                problems[key] = str(error)
    return problems


def reply_fields(instance: Instance, keys: Sequence[str], key: str, places: dict[str, Any]) -> dict[str, str]:
    """Show a field per key; return what is in them. `places` receives a place for the problem of each key."""
    answers = {answer.id: answer for answer in instance.question.answers}
    replies: dict[str, str] = {}
    for name in keys:
        if name.endswith(".interval"):
            continue
        if name == "choice":
            replies[name] = _options(instance, key, is_alone=len(keys) == 1)
        elif name in answers:
            has_interval = f"{name}.interval" in keys
            replies |= _value(instance, answers[name], key, places, has_interval=has_interval)
        else:
            replies[name] = _order(instance, f"{key} {name}")
        places[name] = st.empty()
    return replies


def _value(
    instance: Instance, answer: Answer, key: str, places: dict[str, Any], *, has_interval: bool
) -> dict[str, str]:
    """Show the field of an answer, and both ends of its interval."""
    label = markdown(instance.asked(answer.id))
    if answer.type == "bool":
        picked = st.radio(label, ("yes", "no"), index=None, horizontal=True, key=f"{key} {answer.id}")
        return {answer.id: picked or ""}
    if not has_interval:
        return {answer.id: st.text_input(label, key=f"{key} {answer.id}", width=360)}
    middle, low, high = st.columns([2, 1, 1], vertical_alignment="bottom")
    replies = {answer.id: middle.text_input(label, key=f"{key} {answer.id}")}
    percent = f"{100 * (answer.interval or 0.8):.0f} %"
    ends = [
        place.text_input(f"{percent}: {words}", key=f"{key} {answer.id} {words}")
        for place, words in ((low, "from"), (high, "to"))
    ]
    if any(end.strip() for end in ends):
        replies[f"{answer.id}.interval"] = " .. ".join(end.strip() for end in ends)
    places[f"{answer.id}.interval"] = st.empty()
    return replies


def _options(instance: Instance, key: str, *, is_alone: bool) -> str:
    """Show the options; return the numbers of those that are chosen."""
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
        label_visibility="collapsed" if is_alone else "visible",
    )
    return "" if picked is None else str(picked + 1)


def _order(instance: Instance, key: str) -> str:
    """Show the items of an order, chosen from first to last; return their numbers."""
    by_id = {item.id: item.text for item in instance.question.items}
    texts = [markdown(instance.render(by_id[item_id])) for item_id in instance.items()]
    st.markdown("\n".join(f"{number}. {text}" for number, text in enumerate(texts, 1)))
    picked = st.multiselect(
        "Choose all of them in order, the first one first",
        range(1, len(texts) + 1),
        format_func=lambda number: f"{number}. {texts[number - 1]}",
        key=key,
    )
    return ", ".join(map(str, picked))


def confidence(key: str, effect: str | None = None) -> int:
    """Show the slider. Untouched it says 50: as likely right as wrong. effect: what it changes, for the help."""
    label = "How sure are you that all of it is right? (%, 90: nine of ten such answers are)"
    return int(st.slider(label, 1, 99, 50, key=f"{key} sure", width=440, help=effect))

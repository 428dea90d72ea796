"""Choose a question: the next due one, one of a topic, or one that was answered lately."""

from __future__ import annotations

import datetime as dt
from random import SystemRandom
from typing import NamedTuple

import streamlit as st

from app.debugger.page_frame import plain, row_table, told
from app.debugger.questions.held import bank
from app.debugger.questions.standing import show_readiness
from prep_common.paths import state_path
from prep_common.text import counted
from quizzes.learning.progress import progress
from quizzes.learning.review import Card, again_in_words, cards
from quizzes.learning.selection import Picked, due, figures_seed, is_ready, local_now, pick
from quizzes.question_bank import Entry
from quizzes.state import Attempt, State, StateError
from quizzes.topics import KINDS, TOPICS

IN_A_TERMINAL = ("free", "design", "code")
"""Kinds that are answered with an editor: prose with its marks and probes, programs to repair."""
LISTED = 8
"""Recent answers on the page."""
ALL = "all topics"


class Choice(NamedTuple):
    """A question with a seed, or the sitting of an earlier answer."""

    question: str = ""
    seed: int = 0
    session: str = ""


def show(topic: str | None) -> tuple[Choice | None, str | None]:
    """Show the list. Return the choice that was made, and the topic that is shown."""
    with _state() as state:
        st.caption(
            "Predict a result and commit to it; then the engine runs the experiment, and the answer is graded. The "
            "same questions and the same progress as `prep quiz` and `prep review` in a terminal."
        )
        left, right = st.columns([1.9, 1], gap="large")
        with left:
            topic = _topic(topic)
            choice = _next_one(state, topic) or _listed(state, topic)
        with right:
            choice = _recent(state) or choice
            _standing(state)
    return choice, topic


def _state() -> State:
    """Return the learner's state; one in memory if there is no file yet, or it cannot be read."""
    if not state_path().is_file():
        return State.in_memory()
    state, error = State.open_or_in_memory()
    if error is not None:
        st.warning(f"{told(error)}. {told(error.next_step)}. Answers of this page are not saved until then.")
    return state


def _topic(topic: str | None) -> str | None:
    names = [ALL, *TOPICS]
    counts = {name: sum(entry.topic == name for entry in bank()) for name in TOPICS}
    picked = st.selectbox(
        "Topic",
        names,
        names.index(topic) if topic in names else 0,
        format_func=lambda name: (
            f"{ALL} ({len(bank())})"
            if name == ALL
            else f"{name.replace('_', ' ')} ({counts[name]}): {TOPICS[name]}"
        ),
        key=f"questions topic {topic}",
    )
    return None if picked == ALL else picked


def next_question(state: State, topic: str | None, besides: str = "") -> Picked | None:
    """Return the question to answer next: surprises first, then due ones, then new ones, as `prep quiz` chooses."""
    picks = pick(bank(), state, topic=topic, n=len(bank()), seed=SystemRandom().randrange(1 << 30))
    return next(
        (picked for picked in picks if picked.entry.kind not in IN_A_TERMINAL and picked.id != besides), None
    )


def next_from_file(topic: str | None, besides: str = "") -> Choice | None:
    """Return what comes after a question."""
    try:
        with State.open() as state:
            picked = next_question(state, topic, besides)
    except StateError:
        with State.in_memory() as state:
            picked = next_question(state, topic, besides)
    return None if picked is None else Choice(picked.id, picked.seed)


def _next_one(state: State, topic: str | None) -> Choice | None:
    picked = next_question(state, topic)
    ready = [review for review in due(bank(), state) if topic in (None, review.entry.topic)]
    surprises = sum(review.why == "surprise" for review in ready)
    words = f"{counted(len(ready), 'question')} due" if ready else "no question is due; a new one comes"
    if surprises:
        words += f", {counted(surprises, 'surprise')} first"
    with st.container(horizontal=True, vertical_alignment="center"):
        clicked = st.button("Next question", type="primary", key="questions_next", disabled=picked is None)
        st.caption(words, width="content")
    return Choice(picked.id, picked.seed) if clicked and picked is not None else None


def _listed(state: State, topic: str | None) -> Choice | None:
    now = local_now()
    known = cards(state, now)
    entries = sorted(
        (entry for entry in bank() if topic in (None, entry.topic)),
        key=lambda entry: (entry.topic, entry.difficulty, entry.title),
    )
    rows = [_row(entry, known.get(entry.id), now, with_topic=topic is None) for entry in entries]
    marked = row_table(
        rows,
        f"questions list {topic}",
        "questions: title, kind, difficulty, minutes, next review",
        max_height=470,
        column_config={"question": st.column_config.TextColumn(width="large")},
    )
    if marked is None:
        return None
    entry = entries[marked]
    if entry.kind in IN_A_TERMINAL:
        st.info(f"{KINDS[entry.kind].capitalize()}: answer it in a terminal with an editor.")
        st.code(f"prep quiz --question {entry.id}", language="sh")
        return None
    seed = figures_seed(SystemRandom().randrange(1 << 30), entry.id, state.last_seeds().get(entry.id))
    return Choice(entry.id, seed)


def _row(entry: Entry, card: Card | None, now: dt.datetime, *, with_topic: bool) -> dict[str, object]:
    again = "new" if card is None else "due" if is_ready(card, now) else again_in_words(card, now)
    return {
        "question": entry.title,
        **({"topic": entry.topic.replace("_", " ")} if with_topic else {}),
        "kind": entry.kind,
        "level": entry.difficulty,
        "min": entry.minutes,
        "review": again,
    }


def _recent(state: State) -> Choice | None:
    st.header("Your last answers")
    attempts = [attempt for attempt in state.attempts() if attempt.question_id in bank()][-LISTED:]
    if not attempts:
        st.caption("None yet. Choose a question of the list, or *Next question*.")
    opened = None
    with st.container(key="questions_recent"):
        for attempt in reversed(attempts):
            if st.button(_line(attempt), key=f"questions_open_{attempt.id}", width="stretch"):
                opened = _choice_of(attempt)
    return opened


def _line(attempt: Attempt) -> str:
    mark = "○" if not attempt.scored else "✓" if attempt.correct else "◐" if attempt.points > 0 else "✗"
    return (
        f"{mark} {attempt.at.astimezone():%d %b %H:%M} · {plain(bank().entries[attempt.question_id].title)}"
    )


def _choice_of(attempt: Attempt) -> Choice:
    """An answer of this page opens its verdict; one of a longer sitting, the question with the same numbers."""
    with _state() as state:
        session = next(
            (sitting for sitting in state.sessions("quiz") if sitting.id == attempt.session_id), None
        )
    is_alone = session is not None and len(session.spec.get("question") or ()) == 1
    if is_alone and bank().entries[attempt.question_id].kind not in IN_A_TERMINAL:
        return Choice(attempt.question_id, attempt.seed, attempt.session_id)
    return Choice(attempt.question_id, attempt.seed)


def _standing(state: State) -> None:
    st.header("Your readiness")
    show_readiness(progress(bank(), state).topics)

"""Page Questions: the question bank. Predict, commit, run, explain; the answers are those of `prep quiz`."""

from __future__ import annotations

from random import SystemRandom
from typing import NamedTuple

import streamlit as st

from app.debugger import session
from app.debugger.mock.texts import markdown
from app.debugger.page_frame import told
from app.debugger.pages.mock import STYLE
from app.debugger.questions import asking, choosing, verdict
from app.debugger.questions import held as open_questions
from app.debugger.questions.held import Held
from app.debugger.tabs import OpenElsewhere, tab_id
from quizzes.instance import QuestionError
from quizzes.learning.selection import SEEDS
from quizzes.state import StateError
from quizzes.topics import KINDS, TOPICS
from quizzes.yaml_files import UnknownId

_KEY = "question"


class Place(NamedTuple):
    """A topic, a question or an answer, as in the address of a tab."""

    topic: str | None = None
    question: str = ""
    seed: int = 0
    session: str = ""

    @property
    def parameters(self) -> dict[str, str]:
        named = {"topic": self.topic, "question": self.question, "session": self.session}
        seed = {"seed": str(self.seed)} if self.question else {}
        return {name: value for name, value in named.items() if value} | seed


def show() -> None:
    st.html(STYLE)
    place = _place()
    if not place.question and not place.session:
        st.title("Questions")
        choice, topic = choosing.show(place.topic)
        if choice is not None:
            _go(place._replace(topic=topic, **choice._asdict()))
        if topic != place.topic:
            _go(Place(topic))
        session.add_to_url(place.parameters)
        return
    try:
        held = _held(place)
    except (UnknownId, QuestionError, StateError, OpenElsewhere) as error:
        _refused(place, error)
        return
    if held is None:
        return
    if held.session.id != place.session:
        _go(place._replace(question=held.instance.id, seed=held.record.seed, session=held.session.id))
    session.add_to_url(place.parameters)
    _question(held, place)


def _place() -> Place:
    """Return the place of this tab. An address that the page did not write changes it: a link, Back, Forward."""
    said = {name: text for name, text in st.query_params.items() if name in Place._fields}
    if _KEY not in st.session_state or said and said != st.session_state[_KEY].parameters:
        topic, seed = said.get("topic"), said.get("seed", "")
        number = int(seed) if seed.isdecimal() and len(seed) < 16 else SystemRandom().randrange(SEEDS)
        question, answer = said.get("question", ""), said.get("session", "")
        st.session_state[_KEY] = Place(topic if topic in TOPICS else None, question, number, answer)
    place: Place = st.session_state[_KEY]
    return place


def _go(place: Place) -> None:
    st.session_state[_KEY] = place
    session.add_to_url(place.parameters)
    session.write_url()
    st.rerun()


def _held(place: Place) -> Held | None:
    """Return the open question. A link without an answer opens the question with the numbers of its seed."""
    tab = tab_id()
    held = open_questions.take(place.session, tab) if place.session else None
    if held is not None:
        return held
    if not place.question:
        raise StateError(f"no answer {place.session!r} is saved")
    entry = open_questions.bank().entries.get(place.question)
    if entry is not None and entry.kind in choosing.IN_A_TERMINAL:
        st.title(entry.title)
        st.info(f"{KINDS[entry.kind].capitalize()}: answer it in a terminal with an editor.")
        st.code(f"prep quiz --question {entry.id}", language="sh")
        session.add_to_url(place.parameters)
        _back(place)
        return None
    return open_questions.ask(place.question, place.seed, tab)


def _refused(place: Place, error: Exception) -> None:
    st.title("Questions")
    if isinstance(error, OpenElsewhere):
        st.error("This question is open in another tab. Next: go on there, or close it first.")
        if st.button("Try again", type="primary", key="questions_retry"):
            st.rerun()
    else:
        st.error(f"{told(error)}.")
    session.add_to_url(place.parameters)
    _back(place)


def _back(place: Place) -> None:
    if st.button("All questions", key="questions_all"):
        _go(Place(place.topic))


def _question(held: Held, place: Place) -> None:
    held.settle()
    st.title(markdown(held.instance.question.title))
    asking.head(held)
    if held.unsaved:
        st.warning(f"This answer is not saved: {told(held.unsaved)}")
    left, right = st.columns([1.6, 1], gap="large")
    wants_other = False
    try:
        with left:
            asking.prompt(held)
            if not held.is_committed:
                wants_other = asking.ask(held)
            elif not held.is_over:
                asking.committed(held)
                asking.running(held)
            else:
                verdict.show(held)
        with right:
            wants_other = _buttons(held, place) or wants_other
            if held.is_over:
                verdict.beside(held)
            elif not held.is_committed:
                asking.hints(held)
    except QuestionError as error:
        st.error(f"{told(error)}. `prep bank lint` says what is wrong with it.")
        _back(place)
    if wants_other:
        _leave(held, place, choosing.next_from_file(place.topic, besides=held.instance.id))


def _buttons(held: Held, place: Place) -> bool:
    """Show what leads away from a question. Return whether the learner wants the next one."""
    with st.container(horizontal=True, key="question_buttons"):
        wants_next = held.is_over and st.button("Next question", type="primary", key="question_next")
        if held.is_over and st.button("The same with new numbers", key="question_same"):
            seed = SystemRandom().randrange(SEEDS)
            _leave(held, place, choosing.Choice(held.instance.id, seed))
        guessed = f"question {held.session.id} guessed"
        if held.attempt is not None and held.graded is not None and held.graded.all_right:
            if st.button("I guessed", key=guessed, help="Repeat it as if the answer had been wrong"):
                held.lower_rating()
                st.rerun()
        if st.button("All questions", key="questions_all"):
            _leave(held, place, None)
    return wants_next


def _leave(held: Held, place: Place, then: choosing.Choice | None) -> None:
    open_questions.release(held)
    _go(Place(place.topic) if then is None else Place(place.topic, *then))

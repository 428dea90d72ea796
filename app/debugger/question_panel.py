"""Quiz me on this step: the learner commits an answer, then the run is stepped and shows what it did.

    show_panel(run, step)       on the pages Step and Learn, below the view

A tab keeps its question and its score in its session; nothing of it is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import streamlit as st

from app.debugger.page_frame import plain
from app.debugger.runs import Run
from app.debugger.session import select
from app.debugger.step_questions import Question, in_words, is_right, questions
from engine.trace.format import TraceError
from engine.trace.sentence import sentence

_KEY = "step quiz"
WORTH_ASKING = ("preempt", "hit", "evict", "admit", "finish")
"""Kinds of events; a step before one of them has more to ask about."""


@dataclass
class Quiz:
    """Of one tab."""

    run_id: str = ""
    question: Question | None = None
    given: object = None
    """Committed; None while the question is open."""
    turn: int = 0
    """Questions asked so far: seeds the next one."""
    num_right: int = 0
    num_answered: int = 0
    go: Callable[[int], None] = field(default=lambda step: None, repr=False)
    """How the page that shows the panel moves to a step."""

    def ask(self, run_id: str, question: Question | None) -> None:
        self.run_id, self.question, self.given = run_id, question, None
        self.turn += 1

    def commit(self, given: object) -> None:
        """Counts once: an answer cannot be changed after it is committed."""
        if self.question is None or self.given is not None:
            return
        self.given = given
        self.num_answered += 1
        self.num_right += is_right(self.question, given)

    @property
    def score(self) -> str:
        return f"{self.num_right} of {self.num_answered} right in this tab" if self.num_answered else ""


def step_the_page(step: int) -> None:
    """Move the run that the tab looks at."""
    select(step=step)
    st.rerun()


def show_panel(run: Run, step: int, go: Callable[[int], None] = step_the_page) -> None:
    """The section of a page that shows a run at a step. go: moves the page to another step."""
    quiz: Quiz = st.session_state.setdefault(_KEY, Quiz())
    quiz.go = go
    if quiz.run_id != run.run_id:
        quiz.ask(run.run_id, None)
    with st.expander("Quiz me on this step", expanded=quiz.question is not None):
        try:
            _show(quiz, run, step)
        except TraceError as error:
            st.error(plain(str(error)))
        if quiz.score:
            st.caption(quiz.score)


def _show(quiz: Quiz, run: Run, step: int) -> None:
    if quiz.question is None:
        _offer(quiz, run, step)
    elif quiz.given is not None:
        _show_result(quiz, quiz.question, run, step)
    elif quiz.question.step != step:
        quiz.ask(run.run_id, None)  # the learner went elsewhere without an answer
        _offer(quiz, run, step)
    else:
        _ask(quiz, quiz.question, run)


def next_question(quiz: Quiz, run: Run, step: int) -> Question | None:
    """Another one about the same step, in turn; None if there is nothing to ask."""
    found = questions(run.reader(step), step, seed=quiz.turn)
    return found[quiz.turn % len(found)] if found else None


def worth_asking(run: Run, step: int) -> int | None:
    """A step after this one whose next step does something."""
    for kind in WORTH_ASKING:
        event = run.index.next_event(kind, step + 1)
        if event is not None:
            return event.step - 1
    return None


def _offer(quiz: Quiz, run: Run, step: int) -> None:
    st.caption("A question about what the next step does. You commit an answer, then the run is stepped.")
    if st.button(f"Ask me about step {step}", key="step-quiz-start"):
        question = next_question(quiz, run, step)
        if question is not None:
            quiz.ask(run.run_id, question)
            st.rerun()
        _nothing_to_ask(quiz, run, step)
    elif st.session_state.pop("step-quiz-nothing", None) == step:
        _nothing_to_ask(quiz, run, step)


def _nothing_to_ask(quiz: Quiz, run: Run, step: int) -> None:
    st.session_state["step-quiz-nothing"] = step
    st.info(
        "Nothing to ask here: little happens next, or what happens hangs on tokens that nobody can know (a text that "
        "ends, drafts that are confirmed), or the run went by rules that a page does not show."
    )
    better = worth_asking(run, step)
    if better is not None and st.button(
        f"Go to step {better}, where more happens", key="step-quiz-elsewhere"
    ):
        quiz.go(better)


def _ask(quiz: Quiz, question: Question, run: Run) -> None:
    key = f"step-quiz-{quiz.turn}"
    with st.form(key, border=False):
        st.markdown(f"**{plain(question.prompt)}**")
        given = _input(question, key)
        st.caption(f"Look at: {plain(question.look_at)}.")
        with st.container(horizontal=True):
            # Not "go to step 47": for some questions that would be the answer.
            label = "Commit" if question.revealed == question.step else "Commit, then step"
            committed = st.form_submit_button(label, type="primary")
            another = st.form_submit_button("Another question")
    if another:
        quiz.ask(run.run_id, next_question(quiz, run, question.step))
        st.rerun()
    if committed and given is None:
        st.warning("Give an answer first: a guess counts, too.")
    elif committed:
        quiz.commit(given)
        quiz.go(question.revealed)


def _input(question: Question, key: str) -> object:
    """What the learner entered; None: nothing yet."""
    if question.form == "number":
        return st.number_input("Your answer", min_value=0, step=1, value=None, key=f"{key}-number", width=200)
    if question.form == "choice":
        labels = {choice: plain(choice) for choice in question.choices}
        return st.radio(
            "Your answer", question.choices, index=None, format_func=labels.get, key=f"{key}-choice"
        )
    ticked = [
        choice
        for position, choice in enumerate(question.choices)
        if st.checkbox(plain(choice), key=f"{key}-{position}")
    ]
    return frozenset(ticked)


def _show_result(quiz: Quiz, question: Question, run: Run, step: int) -> None:
    right = is_right(question, quiz.given)
    verdict = "✓ Right." if right else "✗ Not so."
    st.markdown(f"{plain(question.prompt)}")
    answers = (
        f"you said **{plain(in_words(quiz.given))}**, the run says **{plain(in_words(question.answer))}**"
    )
    (st.success if right else st.error)(f"{verdict} {answers[0].upper()}{answers[1:]}.")
    st.markdown(plain(question.explanation))
    if question.revealed != question.step:
        told = sentence(run.reader(question.revealed), question.revealed)
        st.caption(f"Step {question.revealed}: {plain(told)}")
    with st.container(horizontal=True):
        if st.button(f"Ask me about step {step}", key="step-quiz-next", type="primary"):
            quiz.ask(run.run_id, next_question(quiz, run, step))
            if quiz.question is None:
                st.session_state["step-quiz-nothing"] = step
            st.rerun()
        if step != question.step and st.button(f"Back to step {question.step}", key="step-quiz-back"):
            quiz.go(question.step)

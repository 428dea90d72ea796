"""The panel "Quiz me on this step": the learner commits an answer, then the run advances and shows the correct one.

    show_panel(run, step)       on the pages Step, beside the map, and Learn

Question and score are kept in the tab's session and not stored.
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
"""Kinds of events; there is more to ask about a step before one of them."""


@dataclass
class Quiz:
    """The quiz of one tab."""

    run_id: str = ""
    question: Question | None = None
    given: object = None
    """The committed answer; None while the question is open."""
    turn: int = 0
    """Questions asked so far; seeds the next one."""
    num_right: int = 0
    num_answered: int = 0
    go: Callable[[int], None] = field(default=lambda step: None, repr=False)
    """Function with which the page that shows the panel moves to a step."""

    def ask(self, run_id: str, question: Question | None) -> None:
        self.run_id, self.question, self.given = run_id, question, None
        self.turn += 1

    def commit(self, given: object) -> None:
        """Commit an answer; it cannot be changed afterwards."""
        if self.question is None or self.given is not None:
            return
        self.given = given
        self.num_answered += 1
        self.num_right += is_right(self.question, given)

    @property
    def score(self) -> str:
        return f"{self.num_right} of {self.num_answered} right in this tab" if self.num_answered else ""


def asked_at(run: Run) -> int | None:
    """The step of the open question about this run, after which the page hides the run; None without one."""
    quiz: Quiz | None = st.session_state.get(_KEY)
    if quiz is None or quiz.question is None or quiz.given is not None or quiz.run_id != run.run_id:
        return None
    return quiz.question.step


def answered_at(run: Run) -> int | None:
    """The step that an answer is shown for; a next question would be about it. None without an answer."""
    quiz: Quiz | None = st.session_state.get(_KEY)
    if quiz is None or quiz.question is None or quiz.given is None or quiz.run_id != run.run_id:
        return None
    return quiz.question.revealed


def is_open(run: Run) -> bool:
    """Whether a question about this run, or the answer to one, is shown."""
    quiz: Quiz | None = st.session_state.get(_KEY)
    return quiz is not None and quiz.question is not None and quiz.run_id == run.run_id


def step_the_page(step: int) -> None:
    """Move the tab to a step."""
    select(step=step)
    st.rerun()


def show_panel(run: Run, step: int, go: Callable[[int], None] = step_the_page) -> None:
    """Show the panel for a run at a step. go: moves the page to another step."""
    quiz: Quiz = st.session_state.setdefault(_KEY, Quiz())
    quiz.go = go
    if quiz.run_id != run.run_id:
        quiz.ask(run.run_id, None)
    with st.expander("Quiz me on this step", expanded=quiz.question is not None):
        try:
            question = quiz.question
            if question is not None and quiz.given is not None:
                _show_result(quiz, question, run, step)
            elif question is not None and question.step == step:
                _ask(quiz, question, run)
            else:
                if question is not None:
                    quiz.ask(run.run_id, None)  # the learner went elsewhere without an answer
                _offer(quiz, run, step)
        except TraceError as error:
            st.error(plain(str(error)))
        if quiz.score:
            st.caption(quiz.score)


def next_question(quiz: Quiz, run: Run, step: int) -> Question | None:
    """The next question about the step, in turn; None if there is none."""
    possible = questions(run.reader(step), step, seed=quiz.turn)
    return possible[quiz.turn % len(possible)] if possible else None


def _offer(quiz: Quiz, run: Run, step: int) -> None:
    st.caption(
        "A question about the next step. Commit an answer; then the run advances and shows the correct one."
    )
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
        "No question for this step: little happens next, or the outcome depends on unknown tokens (the end of a text, "
        "accepted drafts), or the run used rules that this page does not show."
    )
    events = (run.index.next_event(kind, step + 1) for kind in WORTH_ASKING)
    better = next((event.step - 1 for event in events if event is not None), None)
    if better is not None and st.button(f"Go to step {better}, before an event", key="step-quiz-elsewhere"):
        quiz.go(better)


def _ask(quiz: Quiz, question: Question, run: Run) -> None:
    key = f"step-quiz-{quiz.turn}"
    with st.form(key, border=False):
        st.markdown(f"**{plain(question.prompt)}**")
        given = _input(question, key)
        st.caption(f"Look at: {plain(question.look_at)}.")
        with st.container(horizontal=True):
            # No step number on the button: for some questions it would reveal the answer.
            label = "Commit" if question.revealed == question.step else "Commit, then step"
            committed = st.form_submit_button(label, type="primary")
            another = st.form_submit_button("Another question")
    if another:
        quiz.ask(run.run_id, next_question(quiz, run, question.step))
        st.rerun()
    if committed and given is None:
        st.warning("Give an answer first; a guess is fine.")
    elif committed:
        quiz.commit(given)
        quiz.go(question.revealed)


def _input(question: Question, key: str) -> object:
    """The learner's input; None if there is none yet."""
    if question.form == "number":
        return st.number_input("Your answer", min_value=0, step=1, value=None, key=f"{key}-number", width=200)
    if question.form == "choice":
        return st.radio("Your answer", question.choices, index=None, format_func=plain, key=f"{key}-choice")
    boxes = {n: st.checkbox(plain(choice), key=f"{key}-{n}") for n, choice in enumerate(question.choices)}
    return frozenset(question.choices[n] for n, is_ticked in boxes.items() if is_ticked)


def _show_result(quiz: Quiz, question: Question, run: Run, step: int) -> None:
    right = is_right(question, quiz.given)
    st.markdown(plain(question.prompt))
    answers = (
        f"Your answer: **{plain(in_words(quiz.given))}**; the run: **{plain(in_words(question.answer))}**."
    )
    (st.success if right else st.error)(f"{'✓ Correct.' if right else '✗ Wrong.'} {answers}")
    st.markdown(plain(question.explanation))
    if question.revealed != question.step:
        told = sentence(run.reader(question.revealed), question.revealed, ahead=False)
        st.caption(f"Step {question.revealed}: {plain(told)}")
    with st.container(horizontal=True):
        if st.button(f"Ask me about step {step}", key="step-quiz-next", type="primary"):
            quiz.ask(run.run_id, next_question(quiz, run, step))
            if quiz.question is None:
                st.session_state["step-quiz-nothing"] = step
            st.rerun()
        if step != question.step and st.button(f"Back to step {question.step}", key="step-quiz-back"):
            quiz.go(question.step)

"""A question that is open: its prompt, hints, fields, and the run that decides the answer."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app.debugger.mock.desk import run_desk
from app.debugger.mock.texts import markdown
from app.debugger.page_frame import in_words, told
from app.debugger.questions.held import STOPPED, Held
from app.debugger.reply_fields import confidence, problems_of, reply_fields
from app.debugger.tabs import Job
from prep_common.text import counted, plain_value, rough_duration
from quizzes.experiments.registry import get
from quizzes.experiments.results_cache import last_seconds
from quizzes.grading import asked_keys
from quizzes.instance import QuestionError
from quizzes.topics import KINDS

QUICK_S = 0.4
"""A run that takes no longer shows no progress."""
HALF_FULL_S = 4.0
"""The bar of a first run is half full after this time: nothing says how far it is."""
EVERY_S = 0.3


def head(held: Held) -> None:
    """Show what kind of question it is."""
    question = held.instance.question
    st.caption(
        f"{question.topic.replace('_', ' ')} · {KINDS[question.kind]} · level {question.difficulty} of 5 · "
        f"about {question.minutes:g} min · `{question.id}`"
    )


def prompt(held: Held) -> None:
    """Show the text of the question and its exhibit. Raises QuestionError."""
    question, instance = held.instance.question, held.instance
    st.markdown(markdown(instance.prompt))
    if question.exhibit:
        shown = instance.render(question.exhibit, result=_run_before(held) if question.run_first else None)
        st.code(shown, language=None)


def _run_before(held: Held) -> dict[str, Any]:
    """Return the result of the run that the exhibit shows. Its worker keeps it for the verdict."""
    run = held.instance.question.experiment
    assert run is not None
    try:
        with st.spinner("Running what this question is about …"):
            return held.runner.run(run.run, held.instance.run_args()).result
    except Exception as error:
        raise QuestionError(f"{held.instance.id}: {error}") from error


def ask(held: Held) -> bool:
    """Show the fields until the answer is committed. Return whether the learner wants another question."""
    instance, key = held.instance, f"question {held.session.id}"
    keys, places = asked_keys(instance), dict[str, Any]()
    name = f"question_panel_{held.session.id}"
    with st.container(key=name, border=True), st.form(key, border=False, enter_to_submit=len(keys) == 1):
        replies = reply_fields(instance, keys, key, places)
        sure = confidence(key) if instance.question.confidence else None
        with st.container(horizontal=True, vertical_alignment="center"):
            runs = instance.question.experiment is not None
            label = "Commit and run" if runs else "Commit"
            sent = st.form_submit_button(label, type="primary", shortcut="ctrl+enter")
            other = st.form_submit_button("Another question", help="Nothing is kept of this one")
            st.caption(
                "A committed answer cannot be changed. Numbers may be arithmetic: 38*32.", width="content"
            )
    run_desk(
        {
            "session": held.session.id,
            "draft": held.session.id,
            "first": "input",
            "fields": "textarea, input[type=text]",
            "turn": held.session.id,
            "panel": name,
        }
    )
    if sent:
        problems = problems_of(instance, keys, replies)
        for field, problem in problems.items():
            places[field].error(told(problem), icon=None)
        if not problems:
            held.commit(replies, sure)
            st.rerun()
    return other


def hints(held: Held) -> None:
    """Show the hints so far, and a button for the next one."""
    hints, record = held.instance.question.hints, held.record
    for number, hint in enumerate(hints[: record.hints], 1):
        words = markdown(held.instance.render(hint.text))
        st.info(f"Hint {number} of {len(hints)} (−{hint.cost:.0%}): {words}", icon=None)
    if record.hints < len(hints):
        cost = hints[record.hints].cost
        label = f"Hint {record.hints + 1} of {len(hints)} (−{cost:.0%} of the points)"
        if st.button(label, key=f"question {held.session.id} hint"):
            record.hints += 1
            st.rerun()


def committed(held: Held) -> None:
    """Show the answer that was committed, while its run is under way."""
    rows = [
        f"{held.instance.asked(key)}: **{told(text)}**"
        for key, text in held.record.replies.items()
        if not key.endswith(".interval")
    ]
    sure = "" if held.record.confidence is None else f" · {held.record.confidence} % sure"
    st.markdown(f"You committed: {' · '.join(rows)}{sure}")


def running(held: Held) -> None:
    """Show the run of the answer until it has ended, and the buttons to stop or start it."""
    if held.job is None:
        st.info("The answer is committed and its run has not ended.")
        if st.button("Run", type="primary", key="question_run"):
            held.run()
            st.rerun()
        return
    run = held.instance.question.experiment
    assert run is not None
    held.job.wait(QUICK_S)
    if held.job.is_done:
        st.rerun()
    watch(held.job, run.run, held.instance.run_args())


def watch(job: Job, name: str, args: dict[str, Any]) -> None:
    """Show how far a run is, with the time it took before."""
    st.markdown(f"Running `{name}`")
    text = ", ".join(f"{key} = {plain_value(value)}" for key, value in args.items())
    st.caption(markdown(text if len(text) < 400 else f"{text[:400]} …"))
    _watch(job, name)


@st.fragment(run_every=EVERY_S)
@in_words
def _watch(job: Job, name: str) -> None:
    usual, limit = last_seconds(name), get(name).seconds
    share = job.seconds / (job.seconds + HALF_FULL_S) if usual is None else min(0.97, job.seconds / usual)
    expected = "first run on this machine" if usual is None else f"about {rough_duration(max(1.0, usual))}"
    st.progress(share, f"{job.seconds:.0f} s · {expected} · its limit is {rough_duration(limit)}")
    if st.button("Cancel the run", key=f"question {job.turn} stop", help=f"Not scored: {STOPPED}"):
        job.stop()
    if job.is_done:
        st.rerun()


def hints_used(held: Held) -> str:
    """Return "1 hint", or "" without one."""
    return counted(held.record.hints, "hint") if held.record.hints else ""

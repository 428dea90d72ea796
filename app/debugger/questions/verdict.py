"""After the run: the prediction beside the answer, figures and chart, the explanation, and what to do next."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app.debugger import session
from app.debugger.mock.charts import compared, predictions, show_series, table
from app.debugger.mock.texts import markdown, plain
from app.debugger.page_frame import told
from app.debugger.questions.asking import hints_used, watch
from app.debugger.questions.held import Aside, Held
from prep_common.text import plain_value
from prep_common.typed_value import parse_value, value_text
from quizzes.answering import is_surprise, reasons, shown
from quizzes.experiments.registry import BadArguments, get, source_file
from quizzes.grading import Graded, Part
from quizzes.learning.review import NAMES, again_in_words, cards
from quizzes.learning.selection import local_now
from quizzes.question import Interview
from quizzes.state import State, StateError

LONGEST = 160
"""Characters of a figure in the table; the rest is in the terminal: `prep run NAME`."""


def show(held: Held) -> None:
    """Show the verdict on an answer, the explanation and the interviewer's next question."""
    if held.graded is None:
        st.warning(f"Not scored: {told(held.record.why_unscored)}. It does not count.")
        return
    _outcome(held, held.graded)
    _parts(held, held.graded)
    if held.instance.question.choices:
        _options(held)
    st.markdown(markdown(held.instance.render(held.instance.question.explain, **_names(held))))
    _follow_up(held)


def beside(held: Held) -> None:
    """Show what `prep quiz` offers after a verdict: figures, chart, other numbers, model answer, sources."""
    if held.graded is None:
        return
    run = held.instance.question.experiment
    if run is not None and held.result is not None:
        show_series(run.run, held.result, f"question {held.session.id}")
        figures(run.run, held.result)
        _vary(held)
        _aside(held)
    _more(held)


def _names(held: Held) -> dict[str, Any]:
    return {"result": held.result, "expected": held.expected}


def _outcome(held: Held, graded: Graded) -> None:
    record = held.record
    words = {"right": "✓ Right", "partly": "◐ Partly right", "wrong": "✗ Wrong"}[record.status]
    points = f"{record.points:g} of {record.points_max:g} points"
    parts = [words, points, hints_used(held), _ran(held), _again(held)]
    box = {"right": st.success, "partly": st.info, "wrong": st.error}[record.status]
    box(" · ".join(filter(None, parts)), icon=None)
    if is_surprise(graded, record.confidence):
        st.warning(
            f"Surprise: you were {record.confidence} % sure, and it is wrong. The question comes first in your next "
            "session."
        )


def _ran(held: Held) -> str:
    if held.instance.question.experiment is None:
        return ""
    return "result known" if held.run_seconds is None else f"ran {held.run_seconds:.1f} s"


def _again(held: Held) -> str:
    """Return the rating and the day of the next review, which `prep review` shows too."""
    if held.attempt is None:
        return ""
    try:
        with State.open() as state:
            card = cards(state).get(held.instance.id)
    except StateError:
        return ""
    return (
        "" if card is None else f"{NAMES[card.last_rating]}, asked again {again_in_words(card, local_now())}"
    )


def _parts(held: Held, graded: Graded) -> None:
    """Show the prediction beside the result, part by part, numbers also on an axis."""
    instance = held.instance
    rows = [
        (part.id.replace("_", " "), _said(held, part), _truth(held, part), part.ok) for part in graded.parts
    ]
    is_figure = any(map(_is_number, graded.parts))
    decided = "measured" if graded.grader == "experiment" and is_figure else "answer"
    st.html(table(rows, with_verdicts=True, truth=decided))
    numbers = [row for row, part in zip(rows, graded.parts, strict=True) if _is_number(part)]
    comparisons = [pair for row in numbers if (pair := compared(row)) is not None]
    if comparisons:
        words = "; ".join(
            f"{comparison.what}: said {comparison.said:g}, {decided} {comparison.measured:g}"
            for comparison in comparisons
        )
        st.altair_chart(
            predictions(comparisons, decided), alt=words, key=f"question {instance.id} said", width="content"
        )
    for part in graded.parts:
        if part.remark:
            st.caption(told(part.remark))
        if part.say:
            st.markdown(markdown(part.say))


def _is_number(part: Part) -> bool:
    return isinstance(part.expected, int | float) and not isinstance(part.expected, bool)


def _said(held: Held, part: Part) -> str:
    ends = "" if part.interval is None else f" ({part.interval[0]:g} to {part.interval[1]:g})"
    return shown(held.instance, part, part.given) + ends


def _truth(held: Held, part: Part) -> str:
    return shown(held.instance, part, part.expected)


def _options(held: Held) -> None:
    texts = [held.instance.render(choice.text) for choice in held.instance.choices()]
    lines = [
        f"- {'✓' if is_right else '✗'} **{number}.** {markdown(texts[number - 1])} {markdown(why)}"
        for number, is_right, why in reasons(held.instance, held.result, held.expected)
    ]
    if lines:
        st.markdown("\n".join(lines))


def figures(name: str, result: dict[str, Any]) -> None:
    """Show all fields of a result with their units; a tooltip has the meaning."""
    rows = "".join(
        f"<tr title='{plain(field.meaning)}'><th scope='row'>{plain(field.name.replace('_', ' '))}</th>"
        f"<td>{plain(_short(result.get(field.name)))} <small>{plain(field.unit)}</small></td></tr>"
        for field in get(name).result_fields
    )
    st.html(f"<table class='mock-rows' aria-label='figures of the run'><tbody>{rows}</tbody></table>")


def _short(value: Any) -> str:
    text = plain_value(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


def _vary(held: Held) -> None:
    """Offer the run with other arguments, and its steps on the page Step."""
    key = f"question {held.session.id} vary"
    is_busy = held.job is not None
    with st.expander("Run it again with other numbers", expanded=_is_open(held, "vary")):
        with st.form(key, border=False):
            before = held.instance.run_args()
            texts = {
                name: st.text_input(name.replace("_", " "), value_text(value), key=f"{key} {name}")
                for name, value in before.items()
            }
            sent = st.form_submit_button("Run", disabled=is_busy)
        if sent:
            run = held.instance.question.experiment
            assert run is not None
            args = {name: parse_value(text.strip()) for name, text in texts.items()}
            try:
                get(run.run).check(args)
            except BadArguments as error:
                st.error(told(error))
            else:
                held.vary(args)
                st.rerun()
    if st.button("Watch the run step by step", key=f"{key} watch", disabled=is_busy):
        held.watch()
        st.rerun()


def _is_open(held: Held, kind: str) -> bool:
    return held.aside is not None and held.aside.kind == kind


def _follow_up(held: Held) -> None:
    """Show the interviewer's next question. One with an experiment is a challenge that the engine decides."""
    follow_up = held.follow_up
    if follow_up is None:
        return
    with st.container(border=True, key=f"question_follow_{held.session.id}"):
        st.markdown(f"**Interviewer:** {markdown(held.instance.render(follow_up.ask, **_names(held)))}")
        if follow_up.experiment is None or follow_up.pass_ is None:
            st.caption("Answer aloud.")
            if follow_up.goto is not None and st.button("A graded question on it", key="question_goto"):
                session.go("questions", {"question": follow_up.goto})
            return
        key = f"question {held.session.id} challenge"
        with st.form(key, border=False):
            text = st.text_input("Your numbers", key=f"{key} reply", width=360)
            sent = st.form_submit_button("Run it", disabled=held.job is not None)
        if sent:
            try:
                held.challenge(text)
            except ValueError as error:
                st.error(told(error))
            else:
                st.rerun()


def _aside(held: Held) -> None:
    """Show a further run: under way, or what came out of it."""
    aside = held.aside
    if aside is None:
        return
    run = held.instance.question.experiment
    if held.job is not None:
        name = run.run if run is not None else "the experiment"
        if aside.kind == "challenge" and held.follow_up is not None and held.follow_up.experiment is not None:
            name = held.follow_up.experiment.run
        watch(held.job, name, {})
    elif aside.problem:
        st.error(told(aside.problem))
    elif aside.kind == "record":
        _recorded(aside)
    elif aside.result is not None:
        if aside.met is not None:
            (st.success if aside.met else st.warning)(
                "✓ Met." if aside.met else "✗ Not met: try again.", icon=None
            )
        st.markdown("The run with your numbers:")
        figures(aside.name, aside.result)
        show_series(aside.name, aside.result, f"question {held.session.id} aside")


def _recorded(aside: Aside) -> None:
    if aside.path is None:
        st.info("This experiment does not step an engine, so there are no steps to watch.")
    elif st.button(f"Open {aside.path.stem} on Step", type="primary", key="question_open_run"):
        session.go("step", run=f"mine:{aside.path.stem}")


def _more(held: Held) -> None:
    question = held.instance.question
    if question.interview is not None:
        with st.expander("An answer to say aloud"):
            _interview(held, question.interview)
    with st.expander("Sources"):
        lines = []
        for source in question.sources:
            ref = f"[{told(source.ref)}]({source.url})" if source.url else told(source.ref)
            lines.append(f"- {', '.join(filter(None, (ref, source.version, source.as_of)))}")
        if question.experiment is not None:
            lines.append(f"- the experiment: `{'/'.join(source_file(question.experiment.run).parts[-4:])}`")
        st.markdown("\n".join(lines))


def _interview(held: Held, view: Interview) -> None:
    parts = [
        ("What they want to find out", view.probing),
        ("In 30 seconds", view.short),
        ("In 2 minutes", view.long),
        ("If they ask for more depth", view.deep),
        ("Common weak answers", "\n".join(f"- {text}" for text in view.mistakes)),
    ]
    for heading, text in parts:
        if text:
            st.markdown(f"**{heading}**\n\n{markdown(held.instance.render(text, **_names(held)))}")

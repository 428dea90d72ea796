"""Page Learn: tours of the recorded runs, a question about the step, and related questions of the bank."""

from __future__ import annotations

import streamlit as st

from app.debugger import session
from app.debugger.catalogue import title_of
from app.debugger.charts import mount
from app.debugger.page_frame import link_is_wrong, plain, told
from app.debugger.question_panel import show_panel
from app.debugger.questions.choosing import IN_A_TERMINAL
from app.debugger.questions.held import bank
from app.debugger.questions.standing import show_readiness
from app.debugger.runs import Run
from app.debugger.tour_view import FOLDER
from app.debugger.tour_view.frames import animation
from app.debugger.tours import Stop, Tour, caption, load_tours, step_of
from engine.trace.sentence import sentence
from prep_common.paths import state_path
from prep_common.text import counted
from quizzes.learning.progress import Progress, progress
from quizzes.state import State, StateError

_KEY = "tour"
_QUIZ_STEP = "step of the quiz in a tour"
QUESTIONS_SHOWN = 6


def show() -> None:
    tours = load_tours()
    tour, place = _chosen(tours)
    st.title("Learn")
    picked = st.segmented_control(
        "Tour",
        list(tours),
        default=tour.id,
        format_func=lambda key: tours[key].title,
        key=f"tour_{tour.id}",
        label_visibility="collapsed",
    )
    if picked and picked != tour.id:
        _go_to(tours[picked], 0)
    st.caption(tour.about)
    stop = tour.stops[place]
    run = session.get_run(stop.run)
    step = step_of(stop, run)
    session.add_to_url({"tour": tour.id, "stop": str(place)})
    _show_controls(tour, place, stop, step)
    _show_stop(tour, place, run)
    st.divider()
    left, right = st.columns([1.2, 1], gap="medium")
    with left:
        st.header("Quiz me on a step")
        _show_quiz(run, step)
    with right:
        _show_bank(tour)


def _chosen(tours: dict[str, Tour]) -> tuple[Tour, int]:
    """The tour and stop of this tab, or of the link that opened the page; an unknown tour opens the first one."""
    wanted, stop = session.linked("tour"), session.linked("stop") or "0"
    if wanted in tours:
        last = len(tours[wanted].stops) - 1
        st.session_state[_KEY] = (wanted, min(int(stop), last) if stop.isdecimal() else 0)
        st.session_state.pop(_QUIZ_STEP, None)
    elif wanted is not None:
        link_is_wrong(f"There is no tour {wanted!r}.")
    st.session_state.setdefault(_KEY, (next(iter(tours)), 0))
    name, place = st.session_state[_KEY]
    return tours[name], place


def _go_to(tour: Tour, place: int) -> None:
    st.session_state[_KEY] = (tour.id, place)
    st.session_state.pop(_QUIZ_STEP, None)
    st.rerun()


def _show_controls(tour: Tour, place: int, stop: Stop, step: int) -> None:
    last = len(tour.stops) - 1
    before, after, open_it, where = st.columns([0.8, 0.8, 1.1, 3.3], vertical_alignment="center")
    if before.button("◀ Back", disabled=place == 0, shortcut="left", width="stretch"):
        _go_to(tour, place - 1)
    if after.button("Next ▶", disabled=place == last, shortcut="right", width="stretch", type="primary"):
        _go_to(tour, place + 1)
    if open_it.button("Open on Step", shortcut="o", width="stretch"):
        session.go("step", run=stop.run, step=step, request=stop.request)
    where.markdown(
        f"**{place + 1} of {last + 1}** · run {title_of(stop.run) or stop.run} · after step {step}"
    )


def _show_stop(tour: Tour, place: int, run: Run) -> None:
    """Show the caption beside the steps that lead to it."""
    stop = tour.stops[place]
    words, view = st.columns([1, 2], gap="medium")
    with words:
        st.markdown(caption(stop, run))
    with view:
        before = tour.stops[place - 1] if place else None
        data = animation(stop, run, before)
        mount("prep_tour_view", FOLDER / "tour_view", data, f"tour_{tour.id}_{place}")


def _show_quiz(run: Run, step: int) -> None:
    """Show the quiz with a step of its own: answering advances it, and the tab's selection does not change."""

    def go(step: int) -> None:
        st.session_state[_QUIZ_STEP] = step
        st.rerun()

    st.caption("Commit an answer; then the run advances one step and shows the correct one.")
    at = min(st.session_state.setdefault(_QUIZ_STEP, step), run.index.num_steps - 1)
    what = "" if at == step else f": {plain(sentence(run.reader(at), at))}"
    st.markdown(f"Run **{plain(run.title)}**, after step **{at}**{what}")
    show_panel(run, at, go)


def _show_bank(tour: Tour) -> None:
    st.header("Continue in the question bank")
    entries = [entry for entry in bank() if entry.topic in tour.topics and entry.kind not in IN_A_TERMINAL]
    st.caption("Predict, and the engine decides. Also `prep quiz` in a terminal.")
    with st.container(horizontal=True, key="learn_topics"):
        for topic in tour.topics:
            count = sum(entry.topic == topic for entry in entries)
            if st.button(
                f"{topic.replace('_', ' ')}: {counted(count, 'question')}", key=f"learn_topic_{topic}"
            ):
                session.go("questions", {"topic": topic})
    for entry in entries[:QUESTIONS_SHOWN]:
        if st.button(entry.title, key=f"learn_question_{entry.id}", type="tertiary", icon=":material/quiz:"):
            session.go("questions", {"question": entry.id})
    standing = _standing()
    show_readiness(topic for topic in (standing.topics if standing else ()) if topic.topic in tour.topics)


def _standing() -> Progress | None:
    """Progress from the learner's file, which a terminal may be writing; None if it is missing or unreadable."""
    if not state_path().is_file():
        return None
    try:
        with State.open() as state:
            return progress(bank(), state)
    except StateError as error:
        st.warning(told(error))
        return None

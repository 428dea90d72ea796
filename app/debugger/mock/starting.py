"""Begin an interview, continue an open one, or read the report of an earlier one."""

from __future__ import annotations

import datetime as dt
from random import SystemRandom

import streamlit as st

from app.debugger.mock import held as interviews
from app.debugger.mock.texts import clock_time, markdown
from app.debugger.page_frame import told
from app.debugger.tabs import tab_id
from interview.mock.choose import DAYS, MINUTES, choose, is_repeat
from interview.mock.scenario import LEVELS, role_name
from interview.mock.scenario_list import Scenarios
from interview.mock.session import Saved, SessionError, sessions
from interview.mock.talk import Spec
from prep_common.paths import state_path
from quizzes.question_bank import load_bank
from quizzes.state import State, StateError
from quizzes.topics import ROLES

LISTED = 8
"""Earlier interviews on the page."""
ANY = "the interviewer chooses"


def show() -> str | None:
    """Show the page without an interview. Return the id of the one that was begun or opened."""
    past = sessions()
    scenarios = interviews.scenarios()
    opened = _open_ones([saved for saved in past if saved.can_go_on])
    left, right = st.columns([1.35, 1], gap="large")
    with left:
        begun = _form(scenarios, past)
    with right:
        read = _earlier([saved for saved in past if saved.is_over], scenarios)
    return opened or begun or read


def _open_ones(saves: list[Saved]) -> str | None:
    for saved in saves[:1]:
        with st.container(border=True, horizontal=True, vertical_alignment="center", key="mock_open"):
            st.markdown(f"An interview is open: **{_line(saved)}**", width="stretch")
            if st.button("Continue it", type="primary", key="mock_resume"):
                return saved.spec.id
    if len(saves) > 1:
        with st.expander(f"{len(saves) - 1} more open"):
            for saved in saves[1:LISTED]:
                if st.button(_line(saved), key=f"mock_resume_{saved.spec.id}", width="stretch"):
                    return saved.spec.id
    return None


def _form(scenarios: Scenarios, past: list[Saved]) -> str | None:
    role, level = defaults()
    if not len(scenarios):
        st.error("There are no scenarios. `prep doctor` checks the installation.")
        return None
    with st.form("mock start"):
        st.header("A new interview")
        st.caption(
            "The interviewer asks for predictions with an interval, runs the engine or the simulator, some of the "
            "time with your own numbers, and continues from the gap."
        )
        roles = list(ROLES)
        role = st.selectbox("Role", roles, roles.index(role), format_func=_role_words, key="mock role")
        first, second = st.columns(2)
        level = first.radio("Level", LEVELS, LEVELS.index(level), horizontal=True, key="mock level")
        minutes = second.radio("Minutes", MINUTES, 1, horizontal=True, key="mock minutes")
        names = [None, *sorted(scenarios.entries)]
        with st.expander("More"):
            scenario = st.selectbox(
                "Scenario",
                names,
                format_func=lambda name: ANY if name is None else f"{name}: {scenarios.entries[name].title}",
                key="mock scenario",
            )
            coach = st.checkbox("Tell verdicts at once, not only in the report", key="mock coach")
        begins = st.form_submit_button("Begin", type="primary")
    if not begins:
        return None
    seed = SystemRandom().randrange(1 << 31)
    spec = choose(
        scenarios,
        load_bank(),
        past,
        role=role,
        level=level,
        minutes=minutes,
        seed=seed,
        scenario=scenario,
        coach=coach,
        seen=_seen(),
    )
    return _begin(spec, is_repeat=scenario is None and is_repeat(spec, past))


def _begin(spec: Spec, *, is_repeat: bool) -> str | None:
    try:
        interviews.begin(spec, tab_id())
    except SessionError as error:
        st.error(f"{told(error)}. Next: {told(error.next_step)}")
        return None
    if is_repeat:
        st.toast("You had every scenario within 30 days; this one comes again with new numbers.")
    return spec.id


def defaults() -> tuple[str, str]:
    """Return role and level from the learner's settings."""
    role, level = "inference", "senior"
    if state_path().is_file():
        try:
            with State.open() as state:
                role, level = state.settings.role or role, state.settings.level or level
        except StateError as error:
            st.warning(told(error))
    level = "mid" if level == "junior" else level
    return role if role in ROLES else "inference", level if level in LEVELS else "senior"


def _seen() -> frozenset[str]:
    """Return the questions that were answered lately."""
    if not state_path().is_file():
        return frozenset()
    since = dt.datetime.now(dt.UTC) - dt.timedelta(days=DAYS)
    try:
        with State.open() as state:
            return frozenset(attempt.question_id for attempt in state.attempts(since=since))
    except StateError:
        return frozenset()


def _role_words(role: str) -> str:
    return ROLES[role]


def _earlier(saves: list[Saved], scenarios: Scenarios) -> str | None:
    st.header("Your interviews")
    if not saves:
        st.caption(
            "None yet. Each ends with a report: six axes with their evidence, gaps with links, cards to review."
        )
    for saved in saves[:LISTED]:
        if st.button(_line(saved, scenarios), key=f"mock_report_{saved.spec.id}", width="stretch"):
            return saved.spec.id
    st.caption("The same interviews in a terminal: `prep mock`, `prep mock list`, `prep mock report`.")
    return None


def _line(saved: Saved, scenarios: Scenarios | None = None) -> str:
    spec = saved.spec
    spent = clock_time(saved.elapsed)
    when = dt.datetime.fromisoformat(spec.started).astimezone()
    names = [
        scenarios.entries[name].title if scenarios is not None and name in scenarios.entries else name
        for name in spec.scenarios
    ]
    what = markdown(", ".join(names)) if scenarios is not None else f"{role_name(spec.role)}, {spec.level}"
    return f"{when:%d %b %H:%M} · {what} · {spent} of {spec.minutes}:00"

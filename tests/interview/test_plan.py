"""The plan until the interview: what fits, what is left out, and its files."""

from __future__ import annotations

import datetime as dt
import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import icalendar
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interview.plan.layout import Activity, Day, Item, Laid, LeftOut, Session, Task, lay_out, session_days
from interview.plan.learner import Learner
from interview.plan.make import Plan, divide, make_plan, plan_without_date
from interview.plan.mocks import FIRST
from interview.plan.sources import in_turn
from interview.plan.writing import calendar, check_list
from lessons.course.lesson_files import lessons
from lessons.course.progress import PREFIX
from quizzes.learning.plan import LAST_DAYS, as_laid_out
from quizzes.learning.review import AGAIN, GOOD
from quizzes.question_bank import load_bank
from quizzes.state import Attempt, State, Vote

BANK = load_bank()
NOW = dt.datetime(2026, 3, 2, 12, tzinfo=dt.UTC)  # a Monday
TODAY = NOW.date()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all tests here: it holds the compiled claims, and no mock interviews."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def home(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREP_HOME", str(shared))


@pytest.fixture
def state() -> Iterator[State]:
    with State.in_memory() as state:
        yield state


def planned(
    state: State, days: int, hours: float = 5.0, role: str | None = "sre", now: dt.datetime = NOW
) -> Plan:
    state.change_settings(role=role, interview_date=TODAY + dt.timedelta(days=days), hours_per_week=hours)
    return make_plan(Learner.read(BANK, state, now))


def answered(
    state: State, question: str, days_ago: float = 0.0, *, right: bool = True, **detail: object
) -> None:
    session = state.begin_session("quiz")
    state.add(
        Attempt(
            session.id, question, 1, 0, {}, float(right), 1.0, right, "tests", rating=GOOD if right else AGAIN,
            detail=detail, at=NOW - dt.timedelta(days=days_ago),
        )
    )  # fmt: skip


def pass_exercise(state: State, name: str, days_ago: float = 1.0) -> None:
    answered(state, PREFIX + name, days_ago, event="check", digest=name)


def ids(plan: Plan, kind: str) -> list[str]:
    return [name for day in plan.days for task in day.tasks if task.kind == kind for name in task.ids]


def lessons_left_out(plan: Plan) -> set[str]:
    return {entry.what[1:3] for entry in plan.left_out if entry.kind == "lesson"}


# the layout alone


def words(items: Sequence[Item]) -> list[Task]:
    return [Task("work", item.id, item.minutes, "", (item.id,)) for item in items]


def nothing(unplaced: Sequence[Item]) -> list[LeftOut]:
    return []


MINUTES = st.floats(1, 90)


@settings(max_examples=60, deadline=None)
@given(
    sessions=st.lists(st.floats(0, 200), min_size=1, max_size=20),
    work=st.lists(MINUTES, max_size=30),
    new=st.lists(st.tuples(st.floats(1, 10), st.integers(1, 3)), max_size=30),
    mocks=st.dictionaries(st.integers(0, 19), st.floats(10, 60), max_size=3),
    due=st.dictionaries(st.integers(0, 19), st.lists(st.floats(1, 8), max_size=20), max_size=20),
    until=st.integers(-1, 20),
)
def test_a_layout_keeps_order_and_budgets_and_loses_nothing(
    sessions: list[float],
    work: list[float],
    new: list[tuple[float, int]],
    mocks: dict[int, float],
    due: dict[int, list[float]],
    until: int,
) -> None:
    dates = [TODAY + dt.timedelta(days=n) for n in range(len(sessions))]
    last = TODAY + dt.timedelta(days=until)
    activities = [
        Activity("work", tuple(Item(f"w{n}", m) for n, m in enumerate(work)), words, nothing, until=last),
        Activity(
            "new",
            tuple(Item(f"n{n}", m, count=c) for n, (m, c) in enumerate(new)),
            words,
            nothing,
            until=last,
            repeats=True,
        ),
    ]
    appointments = {dates[n]: Task("mock", "mock", m, "") for n, m in mocks.items() if n < len(dates)}
    laid = lay_out(
        [Session(day, minutes) for day, minutes in zip(dates, sessions, strict=True)],
        activities,
        appointments=appointments,
        reviews={
            dates[n]: {f"{n}.{i}": m for i, m in enumerate(each)} for n, each in due.items() if n < len(dates)
        },
        kept={day: 5.0 for day in dates},
        reviews_of_new=lambda day: [other for other in dates if (other - day).days in (2, 5)],
        review_task=lambda minutes: Task("review", f"{len(minutes)}", sum(minutes), ""),
    )
    assert [day.date for day in laid.days] == dates
    check_nothing_is_lost(laid, activities)
    owed = 0.0
    for day, minutes in zip(laid.days, sessions, strict=True):
        most = max((task.minutes for task in day.tasks), default=0.0)
        assert day.minutes <= max(minutes - owed, 0.0) + most + 1e-6, "more than one item's tail"
        owed = max(0.0, owed + day.minutes - minutes)
        assert day.date <= last or not any(task.ids and task.ids[0][0] == "n" for task in day.tasks)
        assert (appointments.get(day.date) in day.tasks) == (day.date in appointments)


def check_nothing_is_lost(laid: Laid, activities: list[Activity]) -> None:
    for activity in activities:
        letter = activity.kind[0]
        placed = [name for day in laid.days for task in day.tasks for name in task.ids if name[0] == letter]
        rest = [item.id for item in laid.unplaced.get(activity.kind, ())]
        assert placed + rest == [item.id for item in activity.items]


def test_an_activity_advances_evenly() -> None:
    dates = [TODAY + dt.timedelta(days=n) for n in range(10)]
    work = Activity("work", tuple(Item(f"w{n}", 10) for n in range(20)), words, nothing)
    laid = lay_out(
        [Session(day, 100) for day in dates], [work], appointments={}, reviews={}, kept={},
        reviews_of_new=lambda day: [],
        review_task=lambda minutes: Task("review", "", 0, ""),
    )  # fmt: skip
    assert {len(day.tasks) for day in laid.days} == {2}


@settings(max_examples=40, deadline=None)
@given(days=st.integers(1, 60), hours=st.floats(0.1, 100))
def test_sessions_do_not_move_when_a_day_passes(days: int, hours: float) -> None:
    interview = TODAY + dt.timedelta(days=days)
    found = session_days(TODAY, interview, hours)
    assert found == sorted(set(found)) and TODAY <= found[0] <= found[-1] < interview
    if later := [day for day in found if day > TODAY]:
        assert session_days(TODAY + dt.timedelta(days=1), interview, hours) == later
    per_week = [
        sum(monday <= day < monday + dt.timedelta(days=7) for day in found[:-1]) for monday in found[:-7]
    ]
    assert max(per_week, default=1) <= max(1, hours * 60 / 45)


@settings(max_examples=40)
@given(st.floats(0, 1000), st.lists(st.tuples(st.floats(0.1, 1), st.floats(0, 500)), min_size=1, max_size=5))
def test_minutes_are_divided_without_remainder(total: float, wishes: list[tuple[float, float]]) -> None:
    given_ = divide(total, wishes)
    assert all(0 <= got <= wish + 1e-6 for got, (_, wish) in zip(given_, wishes, strict=True))
    assert sum(given_) == pytest.approx(min(total, sum(wish for _, wish in wishes)), abs=1e-3)


def test_topics_come_in_turn_by_weight() -> None:
    order = in_turn({"a": 4.0, "b": 2.0, "c": 0.0}, Counter(a=4, b=4, c=4))
    assert Counter(order) == {"a": 4, "b": 4} and order[:3].count("a") == 2


# the plan of a learner


@pytest.mark.parametrize(
    ("days", "hours"),
    [(1, 5), (2, 60), (3, 5), (5, 0.5), (5, 1), (8, 5), (12, 0.5), (12, 5), (23, 5), (60, 60), (365, 5)],
)
def test_the_plan_of_a_newcomer(state: State, days: int, hours: float) -> None:
    plan = planned(state, days, hours)
    assert [day.date for day in plan.days] == [TODAY + dt.timedelta(days=n) for n in range(days)]
    assert plan.minutes == pytest.approx(hours * 60 / 7 * days) and plan.planned <= plan.minutes + 30
    exercises = ids(plan, "lesson")
    assert exercises == sorted(exercises), "the curriculum's order"
    in_plan = {name for name in exercises}
    for lesson in lessons():
        named = any(entry.what.startswith(f"L{lesson.number}") for entry in plan.left_out)
        assert in_plan.issuperset(lesson.exercises) != named, lesson.number
    check_mocks(plan, days)
    assert not any(t.kind == "new" for day in plan.days[-LAST_DAYS:] for t in day.tasks)
    owed = 0.0
    for day in plan.days:
        most = max((task.minutes for task in day.tasks), default=0.0)
        assert day.minutes <= max(day.budget - owed, 0.0) + most + 1e-6
        owed = max(0.0, owed + day.minutes - day.budget) if day.budget else owed


@pytest.mark.parametrize("hours", [2, 5, 10])
@pytest.mark.parametrize("days", [7, 14, 23, 28])
def test_a_date_makes_new_questions_no_fewer(state: State, days: int, hours: float) -> None:
    dated = planned(state, days, hours).questions
    undated = plan_without_date(Learner.read(BANK, state, NOW))
    assert dated.new_total >= sum(undated.new[:days]) > 0


def check_mocks(plan: Plan, days: int) -> None:
    held = [(n, task.minutes) for n, day in enumerate(plan.days) for task in day.tasks if task.kind == "mock"]
    if days < 2:
        assert held == []
    if held:
        assert days - held[-1][0] in (2, 3), "the last one, two or three days before"
        assert held[-1][1] == max(minutes for _, minutes in held)
    if len(held) > 1:
        assert held[0][1] == FIRST and held[0][0] < 7 or days > 60


def test_ample_time_leaves_nothing_out(state: State) -> None:
    plan = planned(state, 40, 100)
    assert plan.left_out == ()
    assert len(ids(plan, "lesson")) == sum(len(lesson.exercises) for lesson in lessons())


def test_the_role_decides_which_lessons_are_left_out(state: State) -> None:
    of_sre, of_kernel = (lessons_left_out(planned(state, 12, 5, role)) for role in ("sre", "kernel"))
    assert {"15", "16"} <= of_kernel and not {"15", "16"} & of_sre, "serving and capacity"
    assert {"03", "08"} <= of_sre and "08" not in of_kernel, "rooflines and the attention kernel"


def test_labs_of_the_role_are_planned_until_they_pass(state: State) -> None:
    plan = planned(state, 40, 8, "platform")
    found = ids(plan, "lab")
    assert "rate-limiter" in found and not any(name.startswith(("cuda", "triton")) for name in found)
    tasks = [task for day in plan.days for task in day.tasks if task.kind == "lab"]
    assert all(task.command == f"prep lab new {task.ids[0]}" and task.minutes >= 20 for task in tasks)
    pass_exercise(state, "rate-limiter")
    assert "rate-limiter" not in ids(planned(state, 40, 8, "platform"), "lab")


def test_what_is_done_is_not_planned_again(state: State) -> None:
    for exercise in ("09.1", "09.2"):
        pass_exercise(state, exercise)
    state.add(Vote("S0-02", "confirmed", 80, "refuted"))
    plan = planned(state, 12)
    assert "09.3" in ids(plan, "lesson") and "09.1" not in ids(plan, "lesson")
    assert "S0-02" not in ids(plan, "claim")


@pytest.mark.parametrize("days", [12, 16, 20])
def test_what_was_missed_yesterday_moves_or_is_named_as_left_out(state: State, days: int) -> None:
    before = planned(state, days)
    missed = [name for task in before.days[0].tasks if task.kind == "lesson" for name in task.ids]
    after = planned(state, days, now=NOW + dt.timedelta(days=1))
    left_out = lessons_left_out(after)
    kept = [name for name in missed if name.partition(".")[0] not in left_out]
    assert ids(after, "lesson")[: len(kept)] == kept
    assert kept == missed or days < 20  # a short plan has less time for lessons each day
    mock_days = [[d.date for d in p.days for t in d.tasks if t.kind == "mock"] for p in (before, after)]
    assert TODAY in mock_days[0] or mock_days[0] == mock_days[1]


def test_today_shrinks_by_what_was_done_today(state: State) -> None:
    first = planned(state, 12).days[0]
    lesson = next(task for task in first.tasks if task.kind == "lesson")
    for exercise in lesson.ids:
        pass_exercise(state, exercise, days_ago=0)
    today = planned(state, 12).days[0]
    longest = max(task.minutes for task in today.tasks)
    assert today.done == pytest.approx(lesson.minutes)
    assert today.done + today.minutes <= today.budget + longest


def test_due_questions_come_first(state: State) -> None:
    for entry in list(BANK)[:6]:
        answered(state, entry.id, 20)
    task = planned(state, 12).days[0].tasks[0]
    assert (task.kind, task.command) == ("review", f"prep review --limit {task.count}") and task.count > 0


def test_the_figures_of_the_questions_are_those_of_the_days(state: State) -> None:
    for entry in list(BANK)[:6]:
        answered(state, entry.id, 20)
    plan = planned(state, 23)
    days = [{task.kind: task for task in day.tasks} for day in plan.days]
    assert list(plan.questions.reviews) == [day["review"].count if "review" in day else 0 for day in days]
    assert plan.questions.new_total == sum(t.count for day in plan.days for t in day.tasks if t.kind == "new")
    seen = 6 + plan.questions.new_total
    assert 0.6 * seen < plan.questions.recalled < seen


def test_the_day_before_the_interview_has_reviews(state: State) -> None:
    for entry in list(BANK)[:60]:
        answered(state, entry.id, 20)
    [day] = planned(state, 1).days
    minutes = {task.kind: task.minutes for task in day.tasks}
    assert minutes["review"] > 0.5 * day.minutes and "new" not in minutes


def test_no_plan_for_a_week_of_reviews_loses_them(state: State) -> None:
    for entry in list(BANK)[:120]:
        answered(state, entry.id, 20)
    plan = planned(state, 5, 1)
    [told] = [entry for entry in plan.left_out if entry.kind == "review"]
    reasons = {True: "new questions raise the recall more", False: "no time for more"}
    assert (
        told.what.endswith("reviews") and told.why == reasons[any(day.count_of("new") for day in plan.days)]
    )
    assert any(task.kind == "review" for day in plan.days for task in day.tasks)


def test_on_the_day_of_the_interview_there_is_nothing_to_plan(state: State) -> None:
    plan = planned(state, 0)
    assert plan.days == () and plan.planned == 0
    assert calendar(plan, dt.time(19), NOW).count("BEGIN:VEVENT") == 1, "the interview itself"


# files


@functools.cache
def example() -> Plan:
    with State.in_memory() as state:
        return planned(state, 12)


def test_the_calendar_can_be_read_and_keeps_its_uids(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = example()
    text = calendar(plan, dt.time(19), NOW)
    assert all(len(line.encode()) <= 75 for line in text.split("\r\n")) and "\n" not in text.replace(
        "\r\n", ""
    )
    *events, interview = icalendar.Calendar.from_ical(text).walk("VEVENT")
    assert interview["DTSTART"].dt == plan.interview and str(interview["SUMMARY"]) == "Interview"
    assert interview["DTEND"].dt == plan.interview + dt.timedelta(days=1) and not interview.errors
    busy = [day for day in plan.days if day.tasks]
    assert [event["DTSTART"].dt.astimezone().date() for event in events] == [day.date for day in busy]
    for event, day in zip(events, busy, strict=True):
        assert not event.errors and event["DTSTART"].dt.tzinfo is not None
        assert event["DTSTART"].dt.astimezone().hour == 19
        assert (event["DTEND"].dt - event["DTSTART"].dt) == dt.timedelta(minutes=round(day.minutes))
        assert str(event["DESCRIPTION"]).splitlines() == [
            f"{task.text}, {task.minutes:.0f} min: {task.command}" for task in day.tasks
        ]
    *later, moved = icalendar.Calendar.from_ical(
        calendar(plan, dt.time(20), NOW + dt.timedelta(days=1))
    ).walk("VEVENT")
    assert moved["UID"] == interview["UID"]
    assert [event["UID"] for event in later] == [event["UID"] for event in events]
    assert all(new["SEQUENCE"] > old["SEQUENCE"] for new, old in zip(later, events, strict=True))


@settings(max_examples=40, deadline=None)
@given(text=st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=120))
def test_any_text_survives_the_calendar(text: str) -> None:
    day = Day(TODAY, 10, (Task("lesson", text, 10, "prep; \\ , x"),))
    questions = as_laid_out([], new=[0], reviews=[0], minutes_per_day=10, today=TODAY)
    plan = Plan(TODAY, TODAY, 5.0, (day,), (), (), questions)
    event, _ = icalendar.Calendar.from_ical(calendar(plan, dt.time(19), NOW)).walk("VEVENT")
    assert str(event["SUMMARY"]) == f"prep: {text}"
    assert str(event["DESCRIPTION"]) == f"{text}, 10 min: prep; \\ , x"


def test_the_check_off_list_has_a_box_per_task() -> None:
    plan = example()
    text = check_list(plan)
    assert text.count("- [ ] ") == sum(len(day.tasks) for day in plan.days)
    assert "### Mon 2026-03-02" in text and all(entry.what in text for entry in plan.left_out)


def test_a_week_without_tasks_is_not_in_the_check_off_list() -> None:
    plan = example()
    assert check_list(plan).count("## Week of") == 2
    later = TODAY + dt.timedelta(days=7)
    days = tuple(replace(day, tasks=()) if day.date < later else day for day in plan.days)
    assert check_list(replace(plan, days=days)).count("## Week of") == 1

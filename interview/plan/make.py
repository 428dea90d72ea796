"""Make the plan: what each day until the interview is for, and what does not fit.

The plan is computed from what was really done: what was missed yesterday moves to the next sessions, and today's
session is shorter by what was practised today.
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fsrs import Card as FsrsCard

from interview.plan.labs import Labs
from interview.plan.layout import Activity, Day, LeftOut, Session, Task, lay_out
from interview.plan.learner import Learner
from interview.plan.mocks import mock_interviews
from interview.plan.sources import ClaimVotes, Lessons, NewQuestions, Source, plan_questions
from prep_common.text import counted
from quizzes.learning.plan import HORIZON, REVIEW_TIME, as_laid_out, new_card_reviews, review_days
from quizzes.learning.plan import Plan as QuestionPlan

SOURCES: tuple[Callable[[Learner], Source], ...] = (Lessons, Labs, ClaimVotes)
"""Kinds of practice besides questions and mock interviews. To add one, append its source."""
LEAST_REVIEWS = 10
"""Minutes that a session must have for reviews."""


@dataclass(frozen=True)
class Plan:
    """The days from today until the day before the interview."""

    today: dt.date
    interview: dt.date
    hours_per_week: float
    days: tuple[Day, ...]
    left_out: tuple[LeftOut, ...]
    weakest: tuple[str, ...]
    """Topics on which mastery would raise readiness most, at most three."""
    questions: QuestionPlan
    """Its new questions and reviews of each day, and the expected recall on the day of the interview."""

    @property
    def minutes(self) -> float:
        """Minutes from now until the interview."""
        return sum(day.budget - day.done for day in self.days)

    @property
    def planned(self) -> float:
        return sum(day.minutes for day in self.days)

    @property
    def kinds(self) -> list[str]:
        return list(dict.fromkeys(task.kind for day in self.days for task in day.tasks))


def make_plan(learner: Learner) -> Plan:
    """Lay out everything that fits. Needs an interview date, today or later."""
    sessions, done = _sessions(learner)
    total = sum(session.minutes for session in sessions)
    mocks = mock_interviews(learner, [session.date for session in sessions], total)
    # what a mock interview leaves of a session is too short for reviews
    review_on = [
        s.date
        for s in sessions
        if s.minutes - (mocks[s.date].minutes if s.date in mocks else 0) >= LEAST_REVIEWS
    ]
    reviews = _reviews(learner, review_on)
    free = total - sum(task.minutes for task in mocks.values())
    activities, questions = choose(learner, free) if sessions else ([], None)
    laid = lay_out(
        sessions,
        activities,
        appointments=mocks,
        reviews=reviews,
        kept={} if questions is None else _kept(learner, questions, review_on),
        reviews_of_new=lambda day: new_card_reviews(day, review_on[bisect_right(review_on, day) :]),
        review_task=_review_task,
    )
    left_out = [
        entry for activity in activities for entry in activity.left_out(laid.unplaced.get(activity.kind, ()))
    ]
    days = _with_days_off(learner, laid.days, done)
    new = [day.count_of("new") for day in days]
    if laid.reviews_unplaced:
        why = "new questions raise the recall more" if any(new) else "no time for more"
        left_out.append(LeftOut("review", counted(laid.reviews_unplaced, "review"), why))
    return Plan(
        today=learner.today,
        interview=learner.interview,
        hours_per_week=learner.settings.hours_per_week,
        days=days,
        left_out=tuple(left_out),
        weakest=tuple(sorted(learner.weights, key=lambda t: (-learner.weights[t], t))[:3]),
        questions=as_laid_out(
            learner.cards.values(),
            new=new,
            reviews=[day.count_of("review") for day in days],
            minutes_per_day=learner.settings.hours_per_week * 60 / 7,
            today=learner.today,
        ),
    )


def choose(learner: Learner, free: float) -> tuple[list[Activity], QuestionPlan]:
    """Divide the free minutes among the sources and let each choose; return the plan of questions, too.

    Questions and their reviews get what the others leave.
    """
    sources = [make(learner) for make in SOURCES]
    questions = NewQuestions(learner)
    wishes = [(source.share, source.needed()) for source in sources]
    minutes = divide(max(free, 0.0), [*wishes, (questions.share, questions.needed())])
    chosen: list[Activity] = []
    spare = 0.0
    for source, granted in zip(sources, minutes, strict=False):
        chosen.append(source.choose(granted + spare))
        spare += granted - sum(item.minutes for item in chosen[-1].items)
        spare = spare if minutes[-1] == 0 else 0.0
    used = sum(item.minutes for activity in chosen for item in activity.items)
    plan = questions.plan(max(free - used, 0.0) if minutes[-1] else 0.0)
    return [*chosen, questions.activity(plan)], plan


def plan_without_date(learner: Learner) -> QuestionPlan:
    """Return the new questions and reviews of the next four weeks, in the time that lessons and claims leave.

    They get the same share of the time as before an interview, so that a date does not make the new questions fewer.
    """
    ahead = replace(
        learner, settings=replace(learner.settings, interview_date=learner.today + dt.timedelta(days=HORIZON))
    )
    hours = learner.settings.hours_per_week
    free = hours * 60 / 7 * HORIZON
    questions = NewQuestions(ahead)
    wishes = [(source.share, source.needed()) for source in (make(ahead) for make in SOURCES)]
    share = divide(free, [*wishes, (questions.share, questions.needed())])[-1] / free
    plan = plan_questions(learner, len(learner.unseen), hours * share, None)
    return replace(plan, minutes_per_day=hours * 60 / 7)


def _kept(learner: Learner, plan: QuestionPlan, days: Sequence[dt.date]) -> dict[dt.date, float]:
    """Return session -> minutes for the reviews that the plan of questions has up to it."""
    kept: dict[dt.date, float] = {}
    for number, count in enumerate(plan.reviews):
        index = bisect_left(days, learner.today + dt.timedelta(days=number))
        if count and index < len(days):
            minutes = REVIEW_TIME * learner.minutes_per_question * count
            kept[days[index]] = kept.get(days[index], 0.0) + minutes
    return kept


def divide(total: float, wishes: Sequence[tuple[float, float]]) -> list[float]:
    """Divide a total in proportion to shares, without giving any more than it needs. wishes: (share, needed)."""
    given = [0.0] * len(wishes)
    hungry = set(range(len(wishes)))
    while total > 1e-6 and hungry:
        shares = sum(wishes[index][0] for index in hungry)
        offers = {index: total * wishes[index][0] / shares for index in hungry}
        full = {index for index in hungry if wishes[index][1] - given[index] <= offers[index]}
        for index in full or hungry:
            more = wishes[index][1] - given[index] if full else offers[index]
            given[index] += more
            total -= more
        hungry -= full or hungry
    return given


def _sessions(learner: Learner) -> tuple[list[Session], float]:
    """Return the sessions that are left, today's without what was done today; and the minutes done today."""
    days = learner.days
    if not days:
        return [], 0.0
    span = (learner.interview - learner.today).days
    per_session = learner.settings.hours_per_week * 60 * span / 7 / len(days)
    done = learner.minutes_today()
    sessions = [
        Session(day, max(per_session - done, 0.0) if day == learner.today else per_session) for day in days
    ]
    return sessions, done


def _reviews(learner: Learner, days: Sequence[dt.date]) -> dict[dt.date, dict[str, float]]:
    """Return the reviews of each session, of questions that are known already: question -> minutes."""
    reviews: dict[dt.date, dict[str, float]] = {}
    for name, card in learner.cards.items():
        memory = card.memory
        if name in learner.due:  # a surprise is due at once
            memory = FsrsCard.from_dict({**memory.to_dict(), "due": learner.now.isoformat()})
        for day in review_days(memory, days):
            reviews.setdefault(day, {})[name] = REVIEW_TIME * learner.bank.entries[name].minutes
    return reviews


def _review_task(minutes: Sequence[float]) -> Task:
    return Task(
        "review",
        counted(len(minutes), "review"),
        sum(minutes),
        f"prep review --limit {len(minutes)}",
        count=len(minutes),
    )


def _with_days_off(learner: Learner, laid: Sequence[Day], done: float) -> tuple[Day, ...]:
    by_date = {day.date: day for day in laid}
    dates = [learner.today + dt.timedelta(days=n) for n in range((learner.interview - learner.today).days)]
    days = [by_date.get(date, Day(date, 0.0)) for date in dates]
    if days:
        days[0] = replace(days[0], budget=days[0].budget + done, done=done)
    return tuple(days)

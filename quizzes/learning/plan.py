"""Number of new questions per day that fit into the available hours together with their reviews.

Each candidate number is simulated up to the interview: existing and new cards are reviewed when due and always
remembered, which gives a lower bound of their cost. The plan is the largest number whose total fits. There are no new
questions in the last days, because their reviews would not fit.
"""

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from fsrs import Card as FsrsCard

from quizzes.learning.review import GOOD, Card, reviewed

LAST_DAYS = 3
HORIZON = 28
"""Days to plan without an interview date in the future."""
LONGEST = 120
"""Maximum simulated days; a later interview does not change the near future."""
MOST_PER_WEEK = 280


@dataclass(frozen=True)
class Plan:
    """A plan until the interview, or for four weeks."""

    days: int
    days_with_new: int
    minutes_per_day: float
    new_per_week: int
    new_today: int
    new_total: int
    """New questions in total, at most the unseen ones."""
    reviews_per_day: float
    """Mean; a lower bound, because forgotten questions add reviews."""
    enough_time: bool
    """False if the reviews of known questions alone do not fit."""


def plan(
    cards: Iterable[Card],
    *,
    unseen: int,
    minutes_per_question: float,
    hours_per_week: float,
    interview: dt.date | None,
    now: dt.datetime,
) -> Plan:
    """Make the plan. unseen: unanswered questions of the learner's role. minutes_per_question: their mean."""
    today = now.date()
    left = (interview - today).days if interview else 0
    days = min(left, LONGEST) if left > 0 else HORIZON
    new_days = min(days, max(left - LAST_DAYS, 0)) if left > 0 else days
    minutes = hours_per_week * 60 / 7
    budget = minutes * days / minutes_per_question
    end = _noon(today + dt.timedelta(days=days))
    known = 0
    for memory in (card.memory for card in cards if not card.suspended):
        if memory.due < _noon(today):
            memory = FsrsCard.from_dict({**memory.to_dict(), "due": _noon(today).isoformat()})
        known += _played(memory, interview, end)
    per_week, total, reviews = 0, 0, known
    for candidate in range(1, MOST_PER_WEEK + 1):
        starts = _starts(candidate, new_days)[:unseen]
        brought = sum(_reviews_of_new(interview, today, day, days) for day in starts)
        if len(starts) + known + brought > budget or (len(starts) == total == unseen):
            break
        per_week, total, reviews = (candidate, len(starts), known + brought) if starts else (0, 0, known)
    return Plan(
        days=days,
        days_with_new=new_days,
        minutes_per_day=minutes,
        new_per_week=per_week,
        new_today=sum(day == 0 for day in _starts(per_week, new_days, today.toordinal())[:unseen]),
        new_total=total,
        reviews_per_day=reviews / days,
        enough_time=known <= budget,
    )


def _starts(per_week: int, new_days: int, phase: int = 0) -> list[int]:
    """Return the day of each new card's first answer, spread evenly. phase: day of the week."""
    counts = [(phase + day + 1) * per_week // 7 - (phase + day) * per_week // 7 for day in range(new_days)]
    return [day for day, count in enumerate(counts) for _ in range(count)]


@lru_cache(maxsize=4096)
def _reviews_of_new(interview: dt.date | None, today: dt.date, start: int, days: int) -> int:
    """Count the reviews up to day `days` of a card first answered on day `start`."""
    first = _noon(today + dt.timedelta(days=start))
    memory = reviewed(FsrsCard(card_id=0, due=first), GOOD, first, interview)
    return _played(memory, interview, _noon(today + dt.timedelta(days=days)))


def _played(memory: FsrsCard, interview: dt.date | None, end: dt.datetime) -> int:
    reviews = 0
    while memory.due < end:
        memory = reviewed(memory, GOOD, memory.due, interview)
        reviews += 1
    return reviews


def _noon(day: dt.date) -> dt.datetime:
    return dt.datetime.combine(day, dt.time(12), dt.UTC)

"""Days of mock interviews, counted back from the interview so that they are the same in tomorrow's plan."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from interview.plan.layout import Task
from interview.plan.learner import Learner, mock_date

FIRST, WEEKLY, FINAL = 20, 45, 60
MOST = 0.4
"""Share of the time that mock interviews may take."""
EVERY_WEEK = 8
"""Weeks before the interview with a mock interview each; earlier, every fourth week has one."""
APART = 3
"""Days between two mock interviews, at least."""


def mock_interviews(learner: Learner, days: Sequence[dt.date], minutes: float) -> dict[dt.date, Task]:
    """Return the mock interviews by day. days: those with a session. minutes: all there are.

    The last one is two or three days before the interview and the longest; the others are a week apart. The first
    of all takes 20 minutes. If they would take too much time, the weekly ones are dropped, then the last is shortened.
    """
    dates = _dates(learner, days)
    room = MOST * minutes
    lengths = {date: WEEKLY for date in dates}
    if dates:
        lengths[dates[-1]] = next((length for length in (FINAL, WEEKLY, FIRST) if length <= room), 0)
        if not learner.mocks and len(dates) > 1:
            lengths[dates[0]] = FIRST
    while len(lengths) > 1 and sum(lengths.values()) > room:
        middle = dates[1:-1] or dates[:1]
        dates.remove(middle[0])
        del lengths[middle[0]]
    return {date: _task(length) for date, length in sorted(lengths.items()) if length}


def _task(length: int) -> Task:
    return Task("mock", f"mock interview {length} min", length, f"prep mock --minutes {length}")


def _dates(learner: Learner, days: Sequence[dt.date]) -> list[dt.date]:
    """Return the wanted days in order: none on the day before the interview, none soon after a mock interview."""
    left = (learner.interview - learner.today).days
    weeks = [week for week in range(left // 7 + 1) if week < EVERY_WEEK or week % 4 == 0]
    wanted = [_near(learner.interview - dt.timedelta(days=2 + 7 * week), days) for week in weeks]
    if not learner.mocks and len([day for day in wanted if day]) == 1 and left > APART + 3:
        wanted.append(_near(learner.interview - dt.timedelta(days=3 + APART), days))
    held = [mock_date(saved) for saved in learner.mocks]
    return sorted(
        {
            day
            for day in wanted
            if day and all(not dt.timedelta(0) <= day - date < dt.timedelta(days=APART) for date in held)
        }
    )


def _near(wanted: dt.date, days: Sequence[dt.date]) -> dt.date | None:
    """Return the wanted day or the day before it, whichever has a session; None if neither has."""
    return next((day for day in (wanted, wanted - dt.timedelta(days=1)) if day in days), None)

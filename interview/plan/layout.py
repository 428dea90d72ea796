"""Lay activities out over the days until the interview.

Each activity is a list of items in the order in which to do them, and advances evenly: when half of the free minutes
until its last day have passed, about half of it is done. Free is what mock interviews, which have fixed days, and
the minutes kept for reviews leave. Reviews take the rest of a session when they are due; what does not fit waits for
the next one. An item may exceed the minutes of its session; the next session is then shorter by the excess.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from quizzes.learning.plan import REVIEW_TIME

PER_SESSION = 45
"""Minutes that a session should have: about one lesson."""
LAST_DAY_FROM = 3


@dataclass(frozen=True)
class Item:
    """The smallest piece of an activity that is done in one go."""

    id: str
    minutes: float
    topic: str = ""
    ids: tuple[str, ...] = ()
    """Ids of its parts, if it has several."""
    count: int = 1
    """Number of questions or claims."""


@dataclass(frozen=True)
class Task:
    """A line of a day: items of one activity."""

    kind: str
    """Name of the activity: "lesson", "review", "mock" ..."""
    text: str
    """Instruction in a few words."""
    minutes: float
    command: str
    ids: tuple[str, ...] = ()
    count: int = 0
    """Number of new questions, or of reviews."""


@dataclass(frozen=True)
class LeftOut:
    """Something that does not fit, and why."""

    kind: str
    what: str
    why: str
    short: str = ""
    minutes: float = 0.0


@dataclass(frozen=True)
class Activity:
    """Chosen items of one kind of practice, in the order in which to do them."""

    kind: str
    items: tuple[Item, ...]
    tasks: Callable[[Sequence[Item]], list[Task]]
    """Returns the lines of a day for its items."""
    left_out: Callable[[Sequence[Item]], list[LeftOut]]
    """Returns what is left out if these items find no place, with what was not chosen."""
    until: dt.date = dt.date.max
    """Day by which it should be done. What was late by then is done later, except what repeats."""
    repeats: bool = False
    """Whether each item brings reviews on later days."""


@dataclass(frozen=True)
class Session:
    """A day on which to practise."""

    date: dt.date
    minutes: float


@dataclass(frozen=True)
class Day:
    """One day of the plan; without tasks, a day off."""

    date: dt.date
    budget: float
    """Minutes meant for it; 0 on a day off."""
    tasks: tuple[Task, ...] = ()
    done: float = 0.0
    """Minutes practised on it so far; only today has some."""

    @property
    def minutes(self) -> float:
        return sum(task.minutes for task in self.tasks)

    def count_of(self, kind: str) -> int:
        """Return how many new questions ("new") or reviews ("review") it has."""
        return sum(task.count for task in self.tasks if task.kind == kind)


@dataclass(frozen=True)
class Laid:
    """The result: the sessions, and what found no place."""

    days: tuple[Day, ...]
    unplaced: dict[str, tuple[Item, ...]]
    """Activity -> items."""
    reviews_unplaced: int

    @property
    def minutes(self) -> float:
        return sum(day.minutes for day in self.days)


def session_days(today: dt.date, interview: dt.date, hours_per_week: float) -> list[dt.date]:
    """Return the days on which to practise: as many a week as give sessions of 45 minutes.

    The weekdays depend only on the number of days a week, so that tomorrow's plan has the same ones. Saturday is one
    of them, and Sunday is the first to be free. From three days a week on, the day before the interview is one.
    """
    per_week = min(max(int(hours_per_week * 60 // PER_SESSION), 1), 7)
    days = [today + dt.timedelta(days=day) for day in range((interview - today).days)]
    chosen = [d for d in days if (d.toordinal() + 1) * per_week // 7 > d.toordinal() * per_week // 7]
    if per_week >= LAST_DAY_FROM or not chosen:
        chosen += days[-1:] if per_week >= LAST_DAY_FROM else days[-3:][:1]
    return sorted(set(chosen))


class Flow:
    """An activity during the layout: what is left of it, and the minutes that it has earned."""

    def __init__(self, activity: Activity, free: Mapping[dt.date, float]) -> None:
        self.activity = activity
        self.left = list(activity.items)
        self.credit = 0.0
        self.until = activity.until
        if not activity.repeats and not any(day <= self.until for day in free):
            self.until = dt.date.max  # rather late than never
        total = sum(minutes for day, minutes in free.items() if day <= self.until)
        needed = sum(item.minutes for item in self.left)
        self._rate = needed / total if total else 0.0

    def earn(self, day: dt.date, free: float) -> None:
        if day <= self.until:
            self.credit += self._rate * free
        elif self.activity.repeats:
            self.credit = 0.0

    @property
    def is_ready(self) -> bool:
        """Whether it has earned at least half of its next item."""
        return bool(self.left) and self.credit >= self.left[0].minutes / 2

    def take(self) -> Item:
        item = self.left.pop(0)
        self.credit -= item.minutes
        return item


class Reviews:
    """Reviews by day. They wait until a session has room for them, or until the question is due again."""

    def __init__(self, due: Mapping[dt.date, Mapping[str, float]]) -> None:
        self._due = defaultdict(dict, {day: dict(minutes) for day, minutes in due.items()})
        self.waiting: dict[str, float] = {}
        """Question -> minutes."""

    def add(self, days: Sequence[dt.date], minutes: Mapping[str, float]) -> None:
        for day in days:
            self._due[day].update(minutes)

    def take(self, day: dt.date, room: float) -> list[float]:
        """Return the minutes of each review that fits, the oldest first."""
        self.waiting.update(self._due.pop(day, {}))
        taken: list[float] = []
        for question, minutes in list(self.waiting.items()):
            if sum(taken) + minutes > max(room, 0.0) + 1e-9:
                break
            taken.append(self.waiting.pop(question))
        return taken


def lay_out(
    sessions: Sequence[Session],
    activities: Sequence[Activity],
    *,
    appointments: Mapping[dt.date, Task],
    reviews: Mapping[dt.date, Mapping[str, float]],
    kept: Mapping[dt.date, float],
    reviews_of_new: Callable[[dt.date], Sequence[dt.date]],
    review_task: Callable[[Sequence[float]], Task],
) -> Laid:
    """Return the sessions with their tasks.

    reviews: session -> question -> minutes of its review. kept: session -> minutes that reviews should have.
    """
    booked = {day: task.minutes for day, task in appointments.items()}
    free = {
        session.date: max(session.minutes - booked.get(session.date, 0.0) - kept.get(session.date, 0.0), 0.0)
        for session in sessions
    }
    flows = [Flow(activity, free) for activity in activities]
    queue = Reviews(reviews)
    days, debt = [], 0.0
    for session in sessions:
        room = session.minutes - debt
        tasks = [appointments[session.date]] if session.date in appointments else []
        room -= sum(task.minutes for task in tasks)
        for flow in flows:
            flow.earn(session.date, free[session.date])
        for activity, items in _fill(flows, room):
            tasks += activity.tasks(items)
            room -= sum(item.minutes for item in items)
            if activity.repeats:
                for item in items:
                    per_review = REVIEW_TIME * item.minutes / item.count
                    names = [f"{session.date} {item.id} {number}" for number in range(item.count)]
                    queue.add(reviews_of_new(session.date), dict.fromkeys(names, per_review))
        if due := queue.take(session.date, room):
            tasks.insert(session.date in appointments, review_task(due))  # shown before what is new
            room -= sum(due)
        days.append(Day(session.date, session.minutes, tuple(tasks)))
        debt = max(0.0, -room)
    unplaced = {flow.activity.kind: tuple(flow.left) for flow in flows if flow.left}
    return Laid(tuple(days), unplaced, len(queue.waiting))


def _fill(flows: Sequence[Flow], room: float) -> list[tuple[Activity, list[Item]]]:
    """Take items, those of the activity that is most behind first, until the room is used."""
    taken: list[list[Item]] = [[] for _ in flows]
    while ready := [index for index, flow in enumerate(flows) if flow.is_ready]:
        index = max(ready, key=lambda index: flows[index].credit)
        minutes = flows[index].left[0].minutes
        if room < minutes / 2 and not (room > 0 and flows[index].credit >= minutes):
            break
        taken[index].append(flows[index].take())
        room -= minutes
    return [(flow.activity, items) for flow, items in zip(flows, taken, strict=True) if items]

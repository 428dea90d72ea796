"""Activities to choose from: lessons, claims, new questions. Later kinds of practice are further sources.

A source says how many minutes it could use, and chooses what to do in the minutes that it gets.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from interview.plan.layout import Activity, Item, LeftOut, Task
from interview.plan.learner import CLAIM_MINUTES, Learner, parts
from lessons.course.lesson_files import Lab, Lesson, lessons
from prep_common.text import counted
from quizzes.learning.plan import LAST_DAYS, REVIEW_TIME, Plan, plan
from quizzes.topics import ROLES

LONGEST_DAYS = 56
"""Lessons and claims of a far interview are spread over eight weeks."""
IN_A_ROW = 2
"""New questions on one topic in a row."""
CLAIMS = 3
"""Claims in a row."""


class Source(Protocol):
    """A kind of practice."""

    share: float
    """Share of the free minutes, if every source could use more than it gets."""

    def needed(self) -> float:
        """Return the minutes of everything that is left to do, its reviews included."""

    def choose(self, minutes: float) -> Activity:
        """Return what to do in these minutes, and what is left out."""


class Lessons:
    """Lessons in the order of the curriculum. If time is short: those on which the role is asked most per minute."""

    share = 0.45

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._left = {
            lesson.number: [
                Item(name, minutes) for name, minutes in parts(lesson).items() if name not in learner.passed
            ]
            for lesson in lessons()
        }
        self._open = [lesson for lesson in lessons() if self._left[lesson.number]]

    def needed(self) -> float:
        return sum(map(self._minutes, self._open))

    def choose(self, minutes: float) -> Activity:
        value = values(self._learner, lessons())
        chosen: set[str] = set()
        left = minutes
        for lesson in sorted(
            self._open, key=lambda candidate: -value[candidate.number] / self._minutes(candidate)
        ):
            if self._minutes(lesson) <= left + 1e-9:
                chosen.add(lesson.number)
                left -= self._minutes(lesson)
        items = [
            item for lesson in self._open if lesson.number in chosen for item in self._left[lesson.number]
        ]
        rest = sorted(
            (candidate for candidate in self._open if candidate.number not in chosen),
            key=lambda e: -value[e.number],
        )
        total = sum(value.values()) or 1.0

        def left_out(unplaced: Sequence[Item]) -> list[LeftOut]:
            late = [
                LeftOut("lesson", task.text, "no session has room for it", task.text, task.minutes)
                for task in self._tasks(unplaced)
            ]
            return late + [self._left_out(lesson, value[lesson.number] / total) for lesson in rest]

        return Activity("lesson", tuple(items), self._tasks, left_out, until=last_day(self._learner))

    def _left_out(self, lesson: Lesson, share: float) -> LeftOut:
        role = self._learner.settings.role
        who = "all roles are" if role is None else f"the role {ROLES[role].partition(':')[0]} is"
        why = f"{share:.0%} of what {who} asked about lessons"
        name = f"L{lesson.number}"
        return LeftOut("lesson", f"{name} {lesson.title}", why, f"{name} {share:.0%}", self._minutes(lesson))

    def _minutes(self, lesson: Lesson) -> float:
        return sum(item.minutes for item in self._left[lesson.number])

    def _tasks(self, items: Sequence[Item]) -> list[Task]:
        tasks = []
        for lesson in lessons():
            mine = [item for item in items if item.id in lesson.exercises]
            if mine:
                names = [item.id for item in mine]
                text = f"L{lesson.number}" if len(mine) == len(lesson.exercises) else _span(names)
                minutes = sum(item.minutes for item in mine)
                tasks.append(Task("lesson", text, minutes, f"prep lesson open {lesson.number}", tuple(names)))
        return tasks


def values(learner: Learner, pieces: Sequence[Lesson | Lab]) -> dict[str, float]:
    """Return lesson or lab -> how much the role is asked about it and the learner does not know yet.

    A topic's questions are divided among its pieces, and count by the share of a piece's own questions (`unlocks`)
    that the role is asked.
    """
    pieces_on = Counter(topic for piece in pieces for topic in piece.topics)
    known = {entry.id for entry in learner.entries}
    worth = {}
    for piece in pieces:
        unlocked = [name for name in piece.unlocks if name in learner.bank]
        share = sum(name in known for name in unlocked) / len(unlocked) if unlocked else 1.0
        on_topics = sum(learner.weights.get(topic, 0.0) / pieces_on[topic] for topic in piece.topics)
        worth[piece.number] = share * on_topics
    return worth


class ClaimVotes:
    """Claims with a test or a dated source, on the topics that the role is asked about."""

    share = 0.1

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        open_claims = [
            entry
            for entry in learner.claims
            if (entry.run or entry.fact) and entry.kind != "measure-gpu" and entry.id not in learner.voted
        ]
        order = in_turn(learner.weights, Counter(entry.topic for entry in open_claims))
        of_topic = {topic: iter([e for e in open_claims if e.topic == topic]) for topic in set(order)}
        self._ids = [next(of_topic[topic]).id for topic in order]

    def needed(self) -> float:
        return CLAIM_MINUTES * len(self._ids)

    def choose(self, minutes: float) -> Activity:
        count = int(minutes / CLAIM_MINUTES + 1e-9)
        items = tuple(
            Item(ids[0], CLAIM_MINUTES * len(ids), ids=tuple(ids), count=len(ids))
            for ids in batched(self._ids[:count], CLAIMS)
        )
        return Activity("claim", items, self._tasks, self._left_out(count), until=last_day(self._learner))

    def _left_out(self, count: int) -> Callable[[Sequence[Item]], list[LeftOut]]:
        return lambda unplaced: _rest("claim", len(self._ids) - count, unplaced, "claim")

    def _tasks(self, items: Sequence[Item]) -> list[Task]:
        names = tuple(name for item in items for name in item.ids)
        if not names:
            return []
        minutes = sum(item.minutes for item in items)
        text = counted(len(names), "claim")
        return [Task("claim", text, minutes, f"prep claims vote {names[0]}", names)]


class NewQuestions:
    """New questions on the weakest topics of the role; `quizzes.learning.plan` says how many."""

    share = 0.35

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._until = learner.interview - dt.timedelta(days=LAST_DAYS + 1)
        self._all = self._plan(168.0)

    def needed(self) -> float:
        has_day = any(day <= self._until for day in self._learner.days)
        questions = (self._all.new_total if has_day else 0) + REVIEW_TIME * sum(self._all.reviews)
        return questions * self._learner.minutes_per_question

    def plan(self, minutes: float) -> Plan:
        """Return the plan of new questions and reviews for so many minutes until the interview."""
        days = (self._learner.interview - self._learner.today).days
        return self._plan(max(minutes, 1.0) / 60 * 7 / days)

    def activity(self, schedule: Plan) -> Activity:
        """Return the new questions of a plan; reviews are laid out by themselves."""
        learner = self._learner
        order = in_turn(learner.weights, Counter(entry.topic for entry in learner.unseen))
        items = tuple(
            Item(topic, learner.minutes_per_question * count, topic, count=count)
            for topic, count in _rows(order[: schedule.new_total])
        )
        rest = len(learner.unseen) - sum(item.count for item in items)
        return Activity(
            "new",
            items,
            self._tasks,
            lambda unplaced: _rest("new", rest, unplaced, "new question"),
            until=self._until,
            repeats=True,
        )

    def _plan(self, hours: float) -> Plan:
        learner = self._learner
        return plan_questions(learner, len(learner.unseen), hours, learner.interview)

    def _tasks(self, items: Sequence[Item]) -> list[Task]:
        role = f" --role {self._learner.settings.role}" if self._learner.settings.role else ""
        tasks = []
        for topic in dict.fromkeys(item.topic for item in items):
            mine = [item for item in items if item.topic == topic]
            count, minutes = sum(item.count for item in mine), sum(item.minutes for item in mine)
            text = f"{count} new on {topic.replace('_', ' ')}"
            tasks.append(
                Task("new", text, minutes, f"prep quiz --topic {topic}{role} -n {count}", count=count)
            )
        return tasks


def plan_questions(learner: Learner, unseen: int, hours: float, interview: dt.date | None) -> Plan:
    """Return the plan of questions until the interview; None: for four weeks."""
    return plan(
        learner.cards.values(),
        unseen=unseen,
        minutes_per_question=learner.minutes_per_question,
        hours_per_week=hours,
        interview=interview,
        now=learner.now,
    )


def in_turn(weights: dict[str, float], available: Counter[str]) -> list[str]:
    """Return topics in turn, each as often as it has items, so that every start of the list is divided by weight."""
    taken: Counter[str] = Counter()
    order = []
    while rest := [
        topic for topic in sorted(available) if taken[topic] < available[topic] and weights.get(topic)
    ]:
        topic = max(rest, key=lambda topic: weights[topic] / (taken[topic] + 1))
        taken[topic] += 1
        order.append(topic)
    return order


def _rows(topics: Sequence[str]) -> list[tuple[str, int]]:
    """Return (topic, count): the topics in turn, up to IN_A_ROW questions on each."""
    left = Counter(topics)
    rows = []
    while left := +left:
        rows += [(topic, min(IN_A_ROW, count)) for topic, count in left.items()]
        left.subtract(dict.fromkeys(left, IN_A_ROW))
    return rows


def batched(names: Sequence[str], size: int) -> list[Sequence[str]]:
    return [names[start : start + size] for start in range(0, len(names), size)]


def last_day(learner: Learner) -> dt.date:
    """Return the day by which lessons, labs and claims should be done: the last days belong to reviews."""
    days = (learner.interview - learner.today).days
    return learner.today + dt.timedelta(days=min(days - 1 - min(2, days // 4), LONGEST_DAYS))


def _rest(kind: str, unchosen: int, unplaced: Sequence[Item], noun: str) -> list[LeftOut]:
    count = unchosen + sum(item.count for item in unplaced)
    return [LeftOut(kind, counted(count, noun), "no time for more")] if count else []


def _span(names: Sequence[str]) -> str:
    """Return the exercises of a lesson: L09.1, L09.1-2."""
    last = names[-1].partition(".")[2]
    return f"L{names[0]}" + (f"-{last}" if len(names) > 1 else "")

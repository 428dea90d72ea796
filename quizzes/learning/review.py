"""Spaced review of question families: a card is a question id, and every review draws new figures.

Cards are not stored truth. They are replayed from the attempts in order of time, so that two machines which merged
their facts have the same cards. The memory model is FSRS-6 (package `fsrs`) without learning steps, which a program
used once a day cannot honour, and without fuzz, which would draw from the global random numbers.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from fsrs import Card as FsrsCard
from fsrs import Rating, Scheduler

from quizzes.state import Attempt, Settings, State, StateUnavailable

AGAIN, HARD, GOOD, EASY = 1, 2, 3, 4
NAMES = {AGAIN: "Again", HARD: "Hard", GOOD: "Good", EASY: "Easy"}

SURE = 85
"""Per cent from which a learner was sure."""
PARTIAL = 0.6
"""Part of the points from which a wrong answer is not a failure of memory."""
LEECH = 4
"""Lapses after which repeating does not help: the card is suspended."""
RETENTION, LATE_RETENTION, LATE_DAYS = 0.85, 0.93, 10
NO_CAP = 36_500
"""Days."""
REPLAY_VERSION = 1
"""Raise it when the same facts give other cards: kept ones are then made anew."""


@dataclass(frozen=True)
class Card:
    """What memory of one question is thought to be like."""

    question_id: str
    memory: FsrsCard
    reps: int
    lapses: int
    """Forgotten after it had been seen, since the last `resume`."""
    last_rating: int
    last_fraction: float
    """Part of the points of the last answer: 1 if it was right."""
    surprise: bool
    """The last answer was not all right and the learner was sure: first in the next session."""
    suspended: bool

    @property
    def due(self) -> dt.datetime:
        return self.memory.due

    @property
    def last_review(self) -> dt.datetime:
        assert self.memory.last_review is not None
        return self.memory.last_review

    def is_due(self, now: dt.datetime) -> bool:
        """By the calendar of `now`: what was learnt last night is due this morning."""
        return self.due.astimezone(now.tzinfo).date() <= now.date()

    def retrievability(self, now: dt.datetime) -> float:
        """Probability that it is remembered now, by whole days."""
        return scheduler(RETENTION, NO_CAP).get_card_retrievability(self.memory, now)


def rate(
    *, correct: bool, fraction: float, hints: int, seconds: float, minutes: float, confidence: int | None
) -> int:
    """The rating of a judged answer: 1 Again, 2 Hard, 3 Good, 4 Easy. It is derived, not asked for.

    correct: all parts right. fraction: of the points. minutes: what the question should take. Time decides only
    between ratings of answers that are right. Do not rate an answer that was not scored.
    """
    if not correct:
        return HARD if fraction >= PARTIAL else AGAIN
    if hints or seconds > 2 * minutes * 60:
        return HARD
    if confidence is not None and confidence >= SURE and seconds < 0.5 * minutes * 60:
        return EASY
    return GOOD


def is_surprise(attempt: Attempt) -> bool:
    """Not all right although the learner was sure that it is."""
    return attempt.scored and not attempt.correct and (attempt.confidence or 0) >= SURE


@cache
def scheduler(retention: float, cap: int) -> Scheduler:
    """FSRS-6 with its default weights. retention: wanted at the next review; cap: longest interval, in days."""
    return Scheduler(
        desired_retention=retention,
        learning_steps=(),
        relearning_steps=(),
        maximum_interval=cap,
        enable_fuzzing=False,
    )


def interval_cap(interview: dt.date | None, day: dt.date) -> int:
    """Longest interval in days: three reviews still fit before the interview. After it, none."""
    days = (interview - day).days if interview else 0
    return max(1, days // 3) if days > 0 else NO_CAP


def desired_retention(interview: dt.date | None, day: dt.date) -> float:
    """0.85, and in the last ten days up to 0.93 in equal steps."""
    days = (interview - day).days if interview else LATE_DAYS
    if not 0 <= days < LATE_DAYS:
        return RETENTION
    return round(RETENTION + (LATE_RETENTION - RETENTION) * (LATE_DAYS - days) / LATE_DAYS, 4)


def cards(state: State) -> dict[str, Card]:
    """All cards by question id: kept ones if no fact came since, otherwise replayed and kept."""
    version = json.dumps([REPLAY_VERSION, state.version()])
    kept = state.derived("card", version)
    if kept is None:
        replayed = replay(
            state.attempts(scored=True), state.downgrades(), state.card_actions(), state.settings
        )
        with suppress(
            StateUnavailable
        ):  # a disk that is full keeps nothing, and the cards are right all the same
            state.put_derived("card", version, [_row(card) for card in replayed.values()])
        return replayed
    return {row["question_id"]: _card(row) for row in kept}


def replay(
    attempts: Iterable[Attempt],
    downgrades: Mapping[str, int],
    actions: Iterable[tuple[dt.datetime, str, str]],
    settings: Settings,
) -> dict[str, Card]:
    """The cards after these facts, whatever their order of arrival. Attempts without a rating change nothing."""
    events: list[tuple[dt.datetime, str, Any]] = [(a.at, a.id, a) for a in attempts if a.scored and a.rating]
    events += [(at, f"{question}:{action}", (question, action)) for at, question, action in actions]
    found: dict[str, Card] = {}
    for _, _, event in sorted(events, key=lambda event: event[:2]):
        if isinstance(event, Attempt):
            rating = min(event.rating or AGAIN, downgrades.get(event.id, EASY))
            found[event.question_id] = _reviewed(found.get(event.question_id), event, rating, settings)
        else:
            question, action = event
            if question in found:
                found[question] = _told(found[question], action)
    return dict(sorted(found.items()))


def _reviewed(card: Card | None, attempt: Attempt, rating: int, settings: Settings) -> Card:
    day = attempt.at.date()
    plan = scheduler(
        desired_retention(settings.interview_date, day), interval_cap(settings.interview_date, day)
    )
    before = card.memory if card else FsrsCard(card_id=0, due=attempt.at)
    memory, _ = plan.review_card(before, Rating(rating), attempt.at)
    lapses = (card.lapses if card else 0) + (card is not None and rating == AGAIN)
    return Card(
        question_id=attempt.question_id,
        memory=memory,
        reps=(card.reps if card else 0) + 1,
        lapses=lapses,
        last_rating=rating,
        last_fraction=_fraction(attempt, rating),
        surprise=is_surprise(attempt),
        suspended=(card.suspended if card else False) or lapses >= LEECH,
    )


def _fraction(attempt: Attempt, rating: int) -> float:
    if attempt.correct:
        return 1.0 if rating > AGAIN else 0.0  # right by a guess
    return min(max(attempt.points / attempt.points_max, 0.0), 1.0) if attempt.points_max > 0 else 0.0


def _told(card: Card, action: str) -> Card:
    if action == "suspend":
        return replace(card, suspended=True)
    return replace(card, suspended=False, lapses=0)


def _row(card: Card) -> dict[str, Any]:
    return {
        "question_id": card.question_id,
        "fsrs": card.memory.to_json(),
        "due": card.due.isoformat(),
        "stability": card.memory.stability,
        "difficulty": card.memory.difficulty,
        "reps": card.reps,
        "lapses": card.lapses,
        "last_rating": card.last_rating,
        "last_fraction": card.last_fraction,
        "surprise": int(card.surprise),
        "suspended": int(card.suspended),
    }


def _card(row: dict[str, Any]) -> Card:
    return Card(
        question_id=row["question_id"],
        memory=FsrsCard.from_json(row["fsrs"]),
        reps=row["reps"],
        lapses=row["lapses"],
        last_rating=row["last_rating"],
        last_fraction=row["last_fraction"],
        surprise=bool(row["surprise"]),
        suspended=bool(row["suspended"]),
    )

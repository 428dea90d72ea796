"""Spaced review: one card per question id, and new numbers in every review.

Cards are derived by replaying the attempts in order of time, so two machines that merge their facts have the same
cards. The memory model is FSRS-6 (package `fsrs`) without learning steps, which need several sessions a day, and
without fuzz, which would use the global random generator.
"""

import datetime as dt
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from fsrs import Card as FsrsCard
from fsrs import Rating, Scheduler

from prep_common.text import counted
from quizzes.state import Attempt, State, StateUnavailable

AGAIN, HARD, GOOD, EASY = 1, 2, 3, 4
NAMES = {AGAIN: "Again", HARD: "Hard", GOOD: "Good", EASY: "Easy"}

SURE = 85
"""Confidence in percent from which a learner counts as sure."""
PARTIAL = 0.6
"""Share of the points from which a wrong answer counts as remembered with difficulty."""
LEECH = 4
"""Lapses after which a card is suspended, because repeating does not help."""
RETENTION = 0.9
"""Probability of recall at which a card is due."""
LAST_REVIEW_DAYS = 3
"""A review in that many days before the interview is the last one."""
REPLAY_VERSION = 3
"""Increase it when the same facts give different cards: cached cards are then recomputed."""


@dataclass(frozen=True)
class Card:
    """Memory state of one question."""

    question_id: str
    memory: FsrsCard
    reps: int
    lapses: int
    """Times forgotten since the last `resume`."""
    last_rating: int
    last_fraction: float
    """Share of the points of the last answer: 1 if right."""
    surprise: bool
    """The last answer was wrong with high confidence: first in the next session."""
    suspended: bool

    @property
    def due(self) -> dt.datetime:
        return self.memory.due

    @property
    def last_review(self) -> dt.datetime:
        assert self.memory.last_review is not None
        return self.memory.last_review

    def is_due(self, now: dt.datetime) -> bool:
        """Return whether it is due, by the calendar day of `now`: learnt last night, due this morning."""
        return self.due.astimezone(now.tzinfo).date() <= now.date()

    def retrievability(self, now: dt.datetime) -> float:
        """Return the probability that it is remembered now, by whole days."""
        return scheduler().get_card_retrievability(self.memory, now)


def rate(
    *, correct: bool, fraction: float, hints: int, seconds: float, minutes: float, confidence: int | None
) -> int:
    """Return the rating of a graded answer: 1 Again, 2 Hard, 3 Good, 4 Easy.

    correct: all parts right. fraction: share of the points. minutes: expected time of the question; time matters only
    for right answers. Prose that is reviewed counts as right here. Do not rate an answer that could not be graded.
    """
    if not correct:
        return HARD if fraction >= PARTIAL else AGAIN
    if hints or seconds > 2 * minutes * 60:
        return HARD
    if confidence is not None and confidence >= SURE and seconds < 0.5 * minutes * 60:
        return EASY
    return GOOD


def is_surprise(attempt: Attempt) -> bool:
    """Return whether a wrong answer had a high confidence."""
    return attempt.scored and not attempt.correct and (attempt.confidence or 0) >= SURE


@cache
def scheduler() -> Scheduler:
    """Return FSRS-6 with default weights."""
    return Scheduler(
        desired_retention=RETENTION,
        learning_steps=(),
        relearning_steps=(),
        enable_fuzzing=False,
    )


def cards(state: State, now: dt.datetime | None = None) -> dict[str, Card]:
    """Return all cards by question id, due before the interview if its date is set and has not passed."""
    by_question, interview = _cards(state), state.settings.interview_date
    now = now or dt.datetime.now().astimezone()
    if interview is None or interview < now.date():
        return by_question
    return {name: before_interview(card, interview, now.tzinfo) for name, card in by_question.items()}


def before_interview(card: Card, interview: dt.date, zone: dt.tzinfo | None = None) -> Card:
    """Return the card, due at the latest when half of the days from its last review to the interview have passed.

    So its intervals shrink towards the interview. A card reviewed in the last LAST_REVIEW_DAYS days keeps its date.
    zone: that of the learner's calendar days.
    """
    left = (interview - card.last_review.astimezone(zone or dt.UTC).date()).days
    latest = card.last_review + dt.timedelta(days=left // 2)
    if left <= LAST_REVIEW_DAYS or card.due <= latest:
        return card
    memory = copy(card.memory)
    memory.due = latest
    return replace(card, memory=memory)


def _cards(state: State) -> dict[str, Card]:
    """Return all cards as FSRS schedules them: cached ones if no fact was added since, else replayed."""
    version = json.dumps([REPLAY_VERSION, state.version()])
    kept = state.derived_cards(version)
    if kept is None:
        replayed = replay(state.attempts(), state.downgrades(), state.card_actions())
        with suppress(StateUnavailable):  # on a full disk the cards are right, but not cached
            state.put_derived_cards(version, [_row(card) for card in replayed.values()])
        return replayed
    by_question = {}
    for row in kept:
        plain: dict[str, Any] = {name: bool(row[name]) if name in _FLAGS else row[name] for name in _PLAIN}
        by_question[row["question_id"]] = Card(memory=FsrsCard.from_json(row["fsrs"]), **plain)
    return by_question


def replay(
    attempts: Iterable[Attempt],
    downgrades: Mapping[str, int],
    actions: Iterable[tuple[dt.datetime, str, str]],
) -> dict[str, Card]:
    """Return the cards after these facts, independent of their order. Attempts without a rating change nothing."""
    events: list[tuple[dt.datetime, str, Any]] = [(a.at, a.id, a) for a in attempts if a.rating]
    events += [(at, f"{question}:{action}", (question, action)) for at, question, action in actions]
    by_question: dict[str, Card] = {}
    for _, _, event in sorted(events, key=lambda event: event[:2]):
        if isinstance(event, Attempt):
            rating = min(event.rating or AGAIN, downgrades.get(event.id, EASY))
            by_question[event.question_id] = _reviewed(by_question.get(event.question_id), event, rating)
        elif card := by_question.get(event[0]):
            lapses = card.lapses if event[1] == "suspend" else 0
            by_question[event[0]] = replace(card, suspended=event[1] == "suspend", lapses=lapses)
    return dict(sorted(by_question.items()))


def _reviewed(card: Card | None, attempt: Attempt, rating: int) -> Card:
    before = card.memory if card else FsrsCard(card_id=0, due=attempt.at)
    lapses = (card.lapses if card else 0) + (card is not None and rating == AGAIN)
    fraction = min(max(attempt.points / attempt.points_max, 0.0), 1.0) if attempt.points_max > 0 else 0.0
    if attempt.correct:
        fraction = 1.0 if rating > AGAIN else 0.0  # right by a guess
    return Card(
        question_id=attempt.question_id,
        memory=reviewed(before, rating, attempt.at),
        reps=(card.reps if card else 0) + 1,
        lapses=lapses,
        last_rating=rating,
        last_fraction=fraction,
        surprise=is_surprise(attempt),
        suspended=(card.suspended if card else False) or lapses >= LEECH,
    )


def reviewed(memory: FsrsCard, rating: int, at: dt.datetime) -> FsrsCard:
    """Return the memory after a review."""
    return scheduler().review_card(memory, Rating(rating), at)[0]


def again_in_words(card: Card, now: dt.datetime) -> str:
    """Return when a question is asked again: "today", "in 3 days", "next session" or "suspended"."""
    if card.suspended:
        return "suspended"
    if card.surprise:
        return "next session"
    days = (card.due.astimezone(now.tzinfo).date() - now.date()).days
    return "today" if days <= 0 else f"in {counted(days, 'day')}"


_FLAGS = ("surprise", "suspended")
_PLAIN = ("question_id", "reps", "lapses", "last_rating", "last_fraction", *_FLAGS)
"""Fields of Card that are columns of the state's table of cards."""


def _row(card: Card) -> dict[str, Any]:
    memory = card.memory
    columns = {"stability": memory.stability, "difficulty": memory.difficulty, "due": card.due.isoformat()}
    return {**{name: getattr(card, name) for name in _PLAIN}, "fsrs": memory.to_json(), **columns}

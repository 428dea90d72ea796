"""Number of new questions per day with the greatest expected recall on the day of the interview.

FSRS-6 forgets slowly: a question answered once is recalled with about 70 % three weeks later. A new question therefore
gains more than a review of a known one, until no new ones are left. How much of the time new questions should get is
found by simulation: every share in SHARES is tried with the same minutes a day, new questions come first, reviews get
the rest, and each is remembered. The score of a share is the expected number recalled on the day, once by FSRS's curve
and once by a curve that falls faster, because some learners forget faster than FSRS's constants say. Of the shares with
almost the best score the smallest is used: the simulation forgets nothing, but a learner needs time to repeat.

Without an interview date there is no day for which to let reviews wait: then new questions get the largest share that
leaves time for every review that falls due in four weeks.

Mean number of 300 questions that 1,000 simulated learners recall on the day, by `python -m
tests.quizzes.plan_simulation 1000`: with this plan, with the one that it replaced, and with fixed numbers of new
questions; the gain over the best of these, and the lowest gain of four ways to forget. In 90 days there is time for
all questions, and little is left to gain.

    days h/week      plan    before   5 a day  10 a day     gain  lowest
       7      5        51        17        31        40     +27%  +24% (2 x)
      14      5       100        28        60        69     +45%  +39% (steeper)
      23      2        62        15        41        41     +52%  +42% (steeper)
      23      5       158        39        92       102     +55%  +45% (steeper)
      23     10       245        79       105       186     +31%  +26% (steeper)
      45      5       219        61       153       162     +36%  +23% (steeper)
      90      5       266       105       251       254      +5%  -1% (steeper)
      90     10       285       212       278       277      +2%  +1% (2 x)
"""

import datetime as dt
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fsrs import Card as FsrsCard

from quizzes.learning.review import GOOD, Card, reviewed, scheduler

LAST_DAYS = 1
"""Days before the interview without new questions."""
HORIZON = 28
"""Days to plan without an interview date in the future."""
LONGEST = 120
"""Maximum simulated days; a later interview does not change the near future."""
REVIEW_TIME = 0.6
"""Time of a review of a remembered question, relative to its first time."""
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0)
"""Shares of the time for new questions that are tried, in ascending order."""
ALMOST = 0.97
"""Score, relative to the best, from which the smaller share is used."""
FAST = -0.5
"""Exponent of the forgetting curve that falls faster; FSRS-6 has -0.1542."""


@dataclass(frozen=True)
class Plan:
    """A plan until the interview, or for four weeks."""

    days: int
    days_with_new: int
    minutes_per_day: float
    new: tuple[int, ...]
    """New questions on each day."""
    reviews: tuple[int, ...]
    """Reviews on each day; forgotten questions add to them."""
    recalled: float
    """Expected number of questions recalled at the end by FSRS's curve, if each review is remembered."""

    @property
    def new_today(self) -> int:
        return self.new[0]

    @property
    def new_per_week(self) -> int:
        """New questions in the next seven days."""
        return sum(self.new[:7])

    @property
    def new_total(self) -> int:
        return sum(self.new)

    @property
    def reviews_per_day(self) -> float:
        return sum(self.reviews) / self.days


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
    end = today + dt.timedelta(days=days)
    known = _memories(cards)
    plans, scores, waiting = [], [], []
    for share in SHARES if unseen and new_days else SHARES[:1]:
        per_day = minutes / minutes_per_question
        new = _new(per_day * share, unseen, days, new_days, today.toordinal())
        reviews, memories = _simulated(known, new, today, per_day)
        recalled = _recalled(memories, end)
        plans.append(Plan(days, new_days, minutes, tuple(new), tuple(reviews), recalled))
        scores.append(recalled + _recalled(memories, end, FAST))
        waiting.append(sum(memory.due.date() < end for memory in memories))
    if left > 0:
        return next(
            candidate for candidate, score in zip(plans, scores, strict=True) if score >= ALMOST * max(scores)
        )
    fitting = [candidate for candidate, count in zip(plans, waiting, strict=True) if not count]
    return fitting[-1] if fitting else plans[0]


def as_laid_out(
    cards: Iterable[Card],
    *,
    new: Sequence[int],
    reviews: Sequence[int],
    minutes_per_day: float,
    today: dt.date,
) -> Plan:
    """Return the plan with these new questions and reviews on each day from today until the interview."""
    _, memories = _simulated(_memories(cards), new, today, limits=reviews)
    recalled = _recalled(memories, today + dt.timedelta(days=len(new)))
    return Plan(len(new), max(len(new) - LAST_DAYS, 0), minutes_per_day, tuple(new), tuple(reviews), recalled)


def _memories(cards: Iterable[Card]) -> list[FsrsCard]:
    return [card.memory for card in cards if not card.suspended]


def _new(per_day: float, unseen: int, days: int, new_days: int, phase: int) -> list[int]:
    """Return the new questions of each day, spread evenly. phase: the calendar day, so that tomorrow agrees."""
    counts = []
    for day in range(days):
        count = int((phase + day + 1) * per_day) - int((phase + day) * per_day) if day < new_days else 0
        counts.append(min(count, unseen))
        unseen -= counts[-1]
    return counts


def _simulated(
    known: Sequence[FsrsCard],
    new: Sequence[int],
    today: dt.date,
    per_day: float = 0.0,
    limits: Sequence[int] | None = None,
) -> tuple[list[int], list[FsrsCard]]:
    """Return the reviews of each day, and the memories at the end.

    per_day: time, in new questions. limits: maximum reviews of each day, instead of those that fit into the time.
    """
    memories = list(known)
    reviews = []
    room = 0.0
    for day, count in enumerate(new):
        at = _noon(today + dt.timedelta(days=day))
        room = min(room, 1.0) + per_day - count
        limit = max(int(room / REVIEW_TIME + 1e-9), 0) if limits is None else limits[day]
        due = [index for index, memory in enumerate(memories) if memory.due.date() <= at.date()]
        due = sorted(due, key=lambda index: memories[index].due)[:limit]
        for index in due:
            memories[index] = reviewed(memories[index], GOOD, at)
        memories += [reviewed(FsrsCard(card_id=0, due=at), GOOD, at)] * count
        room -= REVIEW_TIME * len(due)
        reviews.append(len(due))
    return reviews, memories


def _recalled(memories: Iterable[FsrsCard], day: dt.date, exponent: float | None = None) -> float:
    """Return the expected number recalled on a day. exponent: of another forgetting curve with the same stability."""
    if exponent is None:
        return sum(scheduler().get_card_retrievability(memory, _noon(day)) for memory in memories)
    falling = 0.9 ** (1 / exponent) - 1  # 90 % is recalled after as many days as the stability
    return sum(
        (1 + falling * max((day - memory.last_review.date()).days, 0) / memory.stability) ** exponent
        for memory in memories
        if memory.last_review is not None and memory.stability
    )


def new_card_reviews(first: dt.date, practice_days: Sequence[dt.date]) -> list[dt.date]:
    """Return the days on which a card first answered on day `first` is reviewed, remembered each time."""
    memory = reviewed(FsrsCard(card_id=0, due=_noon(first)), GOOD, _noon(first))
    return review_days(memory, practice_days)


def review_days(memory: FsrsCard, practice_days: Sequence[dt.date]) -> list[dt.date]:
    """Return the days of a card's reviews, each on the first practice day (sorted) from when it is due."""
    days = []
    while (index := bisect_left(practice_days, memory.due.date())) < len(practice_days):
        day = practice_days[index]
        days.append(day)
        memory = reviewed(memory, GOOD, _noon(day))
    return days


def _noon(day: dt.date) -> dt.datetime:
    return dt.datetime.combine(day, dt.time(12), dt.UTC)

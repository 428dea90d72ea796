"""Selection of questions: surprises first, then due ones, then new ones spread over topics."""

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from random import Random
from typing import Literal

from quizzes.learning import grouped
from quizzes.learning.review import AGAIN, Card, cards
from quizzes.question_bank import Bank, Entry
from quizzes.state import State

Why = Literal["surprise", "due", "new", "ahead"]
SEEDS = 1_000_000


@dataclass(frozen=True)
class Picked:
    """A selected question and the reason."""

    entry: Entry
    why: Why
    seed: int
    """Seed of its numbers, different from the last time."""
    card: Card | None = None
    """Its card; None if it was never answered."""

    @property
    def id(self) -> str:
        return self.entry.id


def pick(
    bank: Bank,
    state: State,
    *,
    topic: str | None = None,
    role: str | None = None,
    stage: str | None = None,
    difficulty: int | None = None,
    kind: str | None = None,
    n: int = 10,
    seed: int = 0,
    now: dt.datetime | None = None,
) -> list[Picked]:
    """Return up to n matching questions. The same bank, facts, seed and day give the same ones.

    Surprises come first, then due questions, new ones, and finally those due next. Suspended cards are left out.
    """
    now = now or local_now()
    known = cards(state, now)
    wanted = {"topic": topic, "stage": stage, "difficulty": difficulty, "kind": kind}
    entries = [
        entry
        for entry in bank
        if (role is None or role in entry.roles)
        and all(value in (None, getattr(entry, name)) for name, value in wanted.items())
    ]
    seen = {entry.id: entry for entry in entries if entry.id in known and not known[entry.id].suspended}
    ready = [card for card in known.values() if card.question_id in seen and is_ready(card, now)]
    later = [card for card in known.values() if card.question_id in seen and not is_ready(card, now)]
    rng = Random(f"pick:{seed}")
    used = state.last_seeds()
    new = spread([entry for entry in entries if entry.id not in known], rng)
    later.sort(key=lambda card: (card.due, card.question_id))
    chosen = chain(
        (_picked(seen, card, seed, used, now) for card in in_order(ready, now)),
        (Picked(entry, "new", figures_seed(seed, entry.id, used.get(entry.id))) for entry in new),
        (_picked(seen, card, seed, used, now) for card in later),
    )
    return list(islice(chosen, n))


def due(
    bank: Bank,
    state: State,
    *,
    now: dt.datetime | None = None,
    limit: int | None = None,
    ahead_days: int = 0,
    surprises: bool = False,
    missed: bool = False,
    seed: int = 0,
) -> list[Picked]:
    """Return the cards to review, surprises first. ahead_days: also those due later. surprises, missed: only those."""
    now = now or local_now()
    used = state.last_seeds()
    chosen = [
        card
        for card in cards(state, now).values()
        if card.question_id in bank
        and not card.suspended
        and is_ready(card, now + dt.timedelta(days=ahead_days))
        and (card.surprise or not surprises)
        and (card.last_rating == AGAIN or not missed)
    ]
    return [_picked(bank.entries, card, seed, used, now) for card in in_order(chosen, now)[:limit]]


def is_ready(card: Card, now: dt.datetime) -> bool:
    """Return whether a card is due, or a surprise, which always comes in the next session."""
    return card.surprise or card.is_due(now)


def in_order(due: Iterable[Card], now: dt.datetime) -> list[Card]:
    """Sort cards: surprises first, then by due day, then the least remembered.

    The simulation of the plan (`tests/quizzes/plan_simulation.py`) reviews by due day, too.
    """
    return sorted(due, key=lambda c: (not c.surprise, c.due.date(), c.retrievability(now), c.question_id))


def spread(entries: list[Entry], rng: Random) -> list[Entry]:
    """Return entries taken from each topic in turn, roughly easiest first."""
    by_topic = grouped(sorted(entries, key=lambda entry: entry.id), lambda entry: entry.topic)
    for of_topic in by_topic.values():
        weight = {entry.id: entry.difficulty + 2 * rng.random() for entry in of_topic}
        of_topic.sort(key=lambda entry: weight[entry.id])
    topics = sorted(by_topic)
    rng.shuffle(topics)
    rounds = max((len(of_topic) for of_topic in by_topic.values()), default=0)
    return [
        by_topic[topic][turn] for turn in range(rounds) for topic in topics if turn < len(by_topic[topic])
    ]


def figures_seed(seed: int, question_id: str, last: int | None) -> int:
    """Return a seed for the question's numbers, different from the last one."""
    rng = Random(f"figures:{seed}:{question_id}")
    drawn = rng.randrange(SEEDS)
    return drawn if drawn != last else (drawn + 1) % SEEDS


def local_now() -> dt.datetime:
    """Return the current time in the learner's time zone."""
    return dt.datetime.now().astimezone()


def _picked(
    entries: Mapping[str, Entry], card: Card, seed: int, used: Mapping[str, int], now: dt.datetime
) -> Picked:
    why: Why = "surprise" if card.surprise else "due" if card.is_due(now) else "ahead"
    seed = figures_seed(seed, card.question_id, used.get(card.question_id))
    return Picked(entries[card.question_id], why, seed, card)

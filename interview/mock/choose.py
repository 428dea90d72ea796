"""Choose what a session asks: never what was asked in the last 30 days, unless nothing else is left."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from random import Random

from interview.mock.scenario import LEVELS
from interview.mock.scenario_list import Scenarios
from interview.mock.session import Saved
from interview.mock.talk import Spec, warm_key, with_rules
from quizzes.experiments.registry import get
from quizzes.question_bank import Bank
from quizzes.state.records import new_id

DAYS = 30
MINUTES = (20, 45, 60)
WARM_KINDS = ("numeric", "choice", "predict")


def choose(
    scenarios: Scenarios,
    bank: Bank,
    past: Sequence[Saved],
    *,
    role: str,
    level: str,
    minutes: int,
    seed: int,
    scenario: str | None = None,
    coach: bool = False,
    seen: frozenset[str] = frozenset(),
    now: dt.datetime | None = None,
) -> Spec:
    """Return what a new session begins with. past: earlier sessions, the newest first. seen: questions of the bank
    that were answered in the last 30 days. scenario: ask this one."""
    now = now or dt.datetime.now(dt.UTC)
    rng = Random(seed)
    last = last_used(past)
    order = _order(scenarios, role, level, last, now, rng)
    chosen = [scenario] if scenario is not None else order[:1]
    if minutes >= 60:
        kinds = {scenarios.entries[name].kind for name in chosen}
        rest = [name for name in order if name not in chosen and scenarios.entries[name].role == role]
        chosen += sorted(rest, key=lambda name: scenarios.entries[name].kind in kinds)[:1]
    topics = {topic for name in chosen for topic in scenarios.entries[name].topics}
    warm = _warm(bank, topics, role, past, seen, now, rng)
    digests = {name: scenarios.digest(name) for name in chosen}
    spec = Spec(
        id=new_id(),
        role=role,
        level=level,
        minutes=minutes,
        seed=seed,
        scenarios=tuple(chosen),
        warm=warm,
        coach=coach,
        digests=digests | ({warm_key(warm): bank.digest(warm)} if warm else {}),
        started=now.isoformat(timespec="seconds"),
    )
    return with_rules(spec)


def last_used(past: Sequence[Saved]) -> dict[str, dt.datetime]:
    """Return when each scenario was asked last."""
    last: dict[str, dt.datetime] = {}
    for saved in past:
        for name in saved.spec.scenarios:
            when = _time(saved.spec.started)
            last[name] = max(last.get(name, when), when)
    return last


def is_repeat(spec: Spec, past: Sequence[Saved]) -> bool:
    """Return whether a scenario comes again within 30 days, because all have been asked."""
    last, now = last_used(past), _time(spec.started)
    return any(name in last and now - last[name] < dt.timedelta(days=DAYS) for name in spec.scenarios)


def _order(
    scenarios: Scenarios, role: str, level: str, last: dict[str, dt.datetime], now: dt.datetime, rng: Random
) -> list[str]:
    """Return the scenarios, the most suitable first: unseen, of the role, of the level or near it."""
    names = sorted(scenarios.entries)
    rng.shuffle(names)
    age = {name: now - last[name] for name in names if name in last}

    def rank(name: str) -> tuple[object, ...]:
        entry = scenarios.entries[name]
        is_recent = name in age and age[name] < dt.timedelta(days=DAYS)
        far = abs(LEVELS.index(entry.level) - LEVELS.index(level))
        return is_recent, -age[name] if is_recent else dt.timedelta(0), entry.role != role, far, name in age

    return sorted(names, key=rank)


def _warm(
    bank: Bank,
    topics: set[str],
    role: str,
    past: Sequence[Saved],
    seen: frozenset[str],
    now: dt.datetime,
    rng: Random,
) -> str:
    """Return an easy question of the bank on a topic of the scenario, not asked in the last 30 days."""
    recent = seen | {s.spec.warm for s in past if now - _time(s.spec.started) < dt.timedelta(days=DAYS)}
    entries = [
        entry
        for entry in bank
        if entry.kind in WARM_KINDS
        and entry.difficulty <= 2
        and entry.minutes <= 4
        and entry.id not in recent
    ]
    rng.shuffle(entries)
    entries.sort(
        key=lambda entry: (entry.topic not in topics, role not in entry.roles, entry.kind == "predict")
    )
    for entry in entries:
        question = bank.question(entry.id)
        run = question.experiment
        if not question.run_first and (
            run is None or get(run.run).determinism == "exact"
        ):  # no long measurement
            return entry.id
    return ""


def _time(text: str) -> dt.datetime:
    when = dt.datetime.fromisoformat(text)
    return when if when.tzinfo else when.replace(tzinfo=dt.UTC)

"""A verdict: the path through the trees, the cause that fits, the runner-up, and what could not be excluded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from engine.server.diagnosis.causes import ABOUT, Cause
from engine.server.diagnosis.evidence import Evidence
from engine.server.diagnosis.figures import Case
from engine.server.diagnosis.replies import Reply
from engine.server.diagnosis.tree import TREE
from engine.server.scrape import is_restart

LEAST_WINDOW_S = 1.0
"""Shorter than a few requests, and rates are chance."""


class CannotJudge(Exception):
    """Evidence that allows no statement, and the reason."""

    def __init__(self, message: str, next_step: str = "") -> None:
        super().__init__(message)
        self.next_step = next_step


@dataclass(frozen=True)
class Step:
    """A question on the path: the measured value, and whether the cause stays possible."""

    branch: str
    cause: Cause
    question: str
    value: str
    holds: bool | None


@dataclass(frozen=True)
class Open:
    """A cause that the evidence neither confirms nor excludes, and the options that would."""

    cause: Cause
    needs: tuple[str, ...]


@dataclass(frozen=True)
class Diagnosis:
    """The answer of the trees. cause None: nothing is wrong, as far as the evidence shows."""

    cause: Cause | None
    meaning: str
    next_step: str
    evidence: tuple[str, ...]
    runner_up: Cause | None
    excluded_by: str
    path: tuple[Step, ...]
    cannot_exclude: tuple[Open, ...]


def diagnose(evidence: Evidence, baseline: Evidence | None = None) -> Diagnosis:
    """Walk the trees with the evidence. Raises CannotJudge."""
    _check(evidence)
    return judge(Case.of(evidence, baseline))


def judge(case: Case) -> Diagnosis:
    """Walk the trees with these figures."""
    asked = {cause: (branch.question, rule(case)) for branch in TREE for cause, rule in branch.rules.items()}
    path: list[Step] = []
    cause: Cause | None = None
    for each, (branch, replies) in asked.items():
        shown = _until_first_no(replies)
        path += [Step(branch, each, reply.question, reply.value, reply.holds) for reply in shown]
        if all(reply.holds for reply in replies):
            cause = each
            break
    runner_up, excluded_by = _runner_up(cause, asked)
    told = ABOUT[cause] if cause is not None else None
    return Diagnosis(
        cause=cause,
        meaning="" if told is None else told.meaning,
        next_step="" if told is None else told.next_step,
        evidence=() if cause is None else tuple(f"{r.question} {r.value}" for r in asked[cause][1]),
        runner_up=runner_up,
        excluded_by=excluded_by,
        path=tuple(path),
        cannot_exclude=_open(asked) if cause is None else (),
    )


def _until_first_no(replies: list[Reply]) -> list[Reply]:
    for index, reply in enumerate(replies):
        if not reply.holds:
            return replies[: index + 1]
    return replies


def _runner_up(cause: Cause | None, asked: dict[Cause, tuple[str, list[Reply]]]) -> tuple[Cause | None, str]:
    """Return the cause that fits best after the named one, and the first reply against it."""
    best: tuple[float, Cause | None, str] = (0.0, None, "")
    for each, (_, replies) in asked.items():
        share = sum(bool(reply.holds) for reply in replies) / len(replies)
        if each is cause or share <= best[0]:
            continue
        against = next((f"{r.question} {r.value}" for r in replies if not r.holds), "")
        if not against:
            against = f"{cause} stands earlier in the trees and explains the same figures"
        best = (share, each, against)
    return best[1], best[2]


def _open(asked: dict[Cause, tuple[str, list[Reply]]]) -> tuple[Open, ...]:
    """Return the causes against which no reply speaks, and which an option could confirm."""
    found = []
    for cause, (_, replies) in asked.items():
        needs = {need for reply in replies if reply.holds is None for need in reply.needs.split("|") if need}
        if needs and not any(reply.holds is False for reply in replies):
            found.append(Open(cause, tuple(sorted(needs))))
    return tuple(found)


def _check(evidence: Evidence) -> None:
    """Raise CannotJudge for evidence without a window, with a restart, or without traffic."""
    looks = evidence.looks
    if len(looks) < 2 or looks[-1].scrape.when - looks[0].scrape.when < LEAST_WINDOW_S:
        raise CannotJudge(f"the window is shorter than {LEAST_WINDOW_S:g} s", "prep diagnose URL --window 10")
    for one, two in zip(looks, looks[1:], strict=False):
        if is_restart(one.scrape, two.scrape):
            raise CannotJudge("the server was restarted in the window: its counters began anew", "try again")
    first, last = looks[0].scrape, looks[-1].scrape
    counters = ("prompt_tokens_total", "generation_tokens_total", "iteration_tokens_total_count")
    moved = any(last.values.get(name, 0.0) > first.values.get(name, 0.0) for name in counters)
    levels = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    held = any(look.scrape.values.get(name, 0.0) > 0 for look in looks for name in levels)
    refused = sum(last.responses.values()) > sum(first.responses.values())
    if not (moved or held or refused):
        raise CannotJudge(
            "no traffic in the window: cannot judge", "send some: prep load URL, or add --probe"
        )


@cache
def branch_of(cause: Cause) -> str:
    """Return the question below which a cause stands."""
    return next(branch.question for branch in TREE if cause in branch.rules)

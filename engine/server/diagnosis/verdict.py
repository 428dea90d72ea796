"""Walk the trees with evidence: the path, the cause or the candidates, and the look that tells these apart."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from engine.server.diagnosis.evidence import Evidence
from engine.server.diagnosis.inputs import Case
from engine.server.diagnosis.replies import Reply, Rule
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
    """A cause on the path, and the replies that decide about it."""

    branch: str
    cause: str
    holds: bool | None
    """True: this is the cause; False: it is excluded; None: an input is missing."""
    replies: tuple[str, ...]
    needs: tuple[str, ...]
    """Options that would decide."""


@dataclass(frozen=True)
class Diagnosis:
    """The answer of the trees.

    cause None: nothing is wrong, as far as the evidence shows, or one of the candidates is the cause.
    """

    cause: str | None
    meaning: str
    next_step: str
    evidence: tuple[str, ...]
    runner_up: str | None
    excluded_by: str
    candidates: tuple[str, ...]
    """Causes for which signs speak, and which this evidence does not tell apart."""
    look: str
    """The option that tells the candidates apart."""
    path: tuple[Step, ...]

    @property
    def cannot_exclude(self) -> tuple[Step, ...]:
        """The causes against which no reply speaks, and which an option could confirm."""
        return tuple(step for step in self.path if step.holds is None)


class _Asked(NamedTuple):
    rule: Rule
    replies: list[Reply]
    needs: tuple[str, ...]
    """Options that are not given yet and would answer what has no answer."""

    @classmethod
    def of(cls, rule: Rule, case: Case) -> _Asked:
        replies = rule.ask(case)
        needs = [
            need for reply in replies if reply.holds is None for need in reply.needs if not case.has(need)
        ]
        return cls(rule, replies, tuple(dict.fromkeys(needs)))

    @property
    def holds(self) -> bool | None:
        """None: no reply speaks against the cause, and an option could confirm it."""
        if all(reply.holds for reply in self.replies):
            return True
        against = any(reply.holds is False for reply in self.replies)
        return False if against or not self.needs else None

    @property
    def has_sign(self) -> bool:
        return any(reply.holds and reply.is_sign for reply in self.replies)

    @property
    def deciding(self) -> list[Reply]:
        """The replies against the cause; those without an answer; all, if they hold."""
        return [reply for reply in self.replies if reply.holds is self.holds] or self.replies


def diagnose(evidence: Evidence, baseline: Evidence | None = None) -> Diagnosis:
    """Walk the trees with the evidence. Raises CannotJudge."""
    _check(evidence)
    return judge(Case.of(evidence, baseline))


def judge(case: Case) -> Diagnosis:
    """Walk the trees with these figures.

    A cause explains what comes after it. So a cause that holds is named only if no earlier one is open with a sign.
    """
    asked = [_Asked.of(rule, case) for rule in TREE]
    first = next((index for index, cause in enumerate(asked) if cause.holds), None)
    rivals = [cause for cause in asked[:first] if cause.holds is None and cause.has_sign]
    candidates = rivals + ([asked[first]] if rivals and first is not None else [])
    named = asked[first] if first is not None and not rivals else None
    runner_up = None if named is None else _runner_up(named, asked)
    wanted = Counter(need for rival in rivals for need in rival.needs)
    return Diagnosis(
        cause=named.rule.cause if named else None,
        meaning=named.rule.meaning if named else "",
        next_step=named.rule.next_step if named else "",
        evidence=_texts(named.replies) if named else (),
        runner_up=runner_up.rule.cause if runner_up else None,
        excluded_by=_against(runner_up, named) if runner_up and named else "",
        candidates=tuple(candidate.rule.cause for candidate in candidates),
        look=wanted.most_common(1)[0][0] if wanted else "",
        path=tuple(map(_step, asked if named is None or first is None else asked[: first + 1])),
    )


def _step(asked: _Asked) -> Step:
    return Step(
        asked.rule.branch,
        asked.rule.cause,
        asked.holds,
        _texts(asked.deciding[: None if asked.holds else 1]),
        asked.needs,
    )


def _texts(replies: list[Reply]) -> tuple[str, ...]:
    return tuple(f"{reply.question} {reply.value}" for reply in replies)


def _runner_up(named: _Asked, asked: list[_Asked]) -> _Asked | None:
    """Return the cause that fits best after the named one."""
    shares = {
        index: sum(bool(reply.holds) for reply in cause.replies) / len(cause.replies)
        for index, cause in enumerate(asked)
        if cause is not named
    }
    best = max(shares, key=lambda index: shares[index])
    return asked[best] if shares[best] else None


def _against(runner_up: _Asked, named: _Asked) -> str:
    """Return the first reply against a cause."""
    against = next(iter(_texts([reply for reply in runner_up.replies if not reply.holds])), "")
    return against or f"{named.rule.cause} stands earlier in the trees and explains the same figures"


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

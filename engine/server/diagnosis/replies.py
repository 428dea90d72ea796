"""A reply: one question of a tree, the measured value, and the branch that it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from common.text import duration

Show = Callable[[float], str]


@dataclass(frozen=True)
class Reply:
    question: str
    value: str
    holds: bool | None
    """None: the question has no answer, because an input is missing or nothing happened."""
    needs: str = ""
    """Option that would answer it."""


def percent(value: float) -> str:
    return f"{value:.0%}"


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 20 else f"{value:.3g}"


def times(value: float) -> str:
    return f"{value:.2g} times"


def more(
    question: str, value: float | None, least: float, show: Show = number, needs: str = "", note: str = ""
) -> Reply:
    """Ask whether a value is at least `least`."""
    if value is None:
        return Reply(question, "not known", None, needs)
    return Reply(question, f"{show(value)}{note} (limit {show(least)})", value >= least, needs)


def less(question: str, value: float | None, most: float, show: Show = number, needs: str = "") -> Reply:
    """Ask whether a value is at most `most`."""
    if value is None:
        return Reply(question, "not known", None, needs)
    return Reply(question, f"{show(value)} (limit {show(most)})", value <= most, needs)


def ratio(one: float | None, other: float | None) -> float | None:
    """Return one / other; None if either is not known or the other is 0."""
    return None if one is None or not other else one / other


def either(question: str, *replies: Reply) -> Reply:
    """Ask whether one of several questions holds. It has no answer if none holds and one has none."""
    if held := next((reply for reply in replies if reply.holds), None):
        return Reply(question, f"{held.question} {held.value}", True, held.needs)
    known = [reply for reply in replies if reply.holds is not None]
    needs = "|".join(dict.fromkeys(reply.needs for reply in replies if reply.holds is None and reply.needs))
    value = "; ".join(f"{reply.question} {reply.value}" for reply in known) or "not known"
    open_ = len(known) < len(replies) and bool(needs)
    return Reply(question, value, None if open_ else False, needs)


def seconds(value: float) -> str:
    return duration(value)

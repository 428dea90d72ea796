"""A reply: one question of a tree, the measured value, and the branch that it takes. A rule: the replies of a cause."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import cleandoc
from typing import NamedTuple

from engine.server.diagnosis.inputs import Case
from prep_common.text import duration

Show = Callable[[float], str]
seconds: Show = duration


@dataclass(frozen=True)
class Reply:
    question: str
    value: str
    holds: bool | None
    """None: the question has no answer, because an input is missing or nothing happened."""
    needs: tuple[str, ...] = ()
    """Options, one of which would answer it."""
    is_sign: bool = True
    """Whether it is a sign of trouble that it holds; most traffic of a healthy server has the others, too."""


def percent(value: float) -> str:
    return f"{value:.0%}"


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 20 else f"{value:.3g}"


def times(value: float) -> str:
    return f"{value:.2g} times"


def more(
    question: str, value: float | None, least: float, show: Show = number, *needs: str, is_sign: bool = True
) -> Reply:
    """Ask whether a value is at least `least`."""
    if value is None:
        return Reply(question, "not measured", None, needs, is_sign)
    return Reply(question, f"{show(value)} (at least {show(least)})", value >= least, needs, is_sign)


def less(
    question: str, value: float | None, most: float, show: Show = number, *needs: str, is_sign: bool = True
) -> Reply:
    """Ask whether a value is at most `most`."""
    if value is None:
        return Reply(question, "not measured", None, needs, is_sign)
    return Reply(question, f"{show(value)} (at most {show(most)})", value <= most, needs, is_sign)


def yes(question: str, value: bool | None, *needs: str, is_sign: bool = True) -> Reply:
    """Ask a question that is answered by yes or no."""
    return Reply(question, {True: "yes", False: "no", None: "not measured"}[value], value, needs, is_sign)


def either(question: str, *replies: Reply) -> Reply:
    """Ask whether one of several questions holds. It has no answer if none holds and one has none."""
    if held := next((reply for reply in replies if reply.holds), None):
        return Reply(question, f"{held.question} {held.value}", True, held.needs, held.is_sign)
    known = [reply for reply in replies if reply.holds is not None]
    needs = tuple(dict.fromkeys(need for reply in replies if reply.holds is None for need in reply.needs))
    value = "; ".join(f"{reply.question} {reply.value}" for reply in known) or "not measured"
    return Reply(question, value, None if needs or not known else False, needs)


def first(question: str, *replies: Reply) -> Reply:
    """Ask a question that each of several replies would decide: the first with an answer does."""
    known = next((reply for reply in replies if reply.holds is not None), None)
    if known is None:
        needs = tuple(need for reply in replies for need in reply.needs)
        return Reply(question, "not measured", None, needs, replies[0].is_sign)
    return replace(known, question=question, value=f"{known.question} {known.value}")


def ratio(one: float | None, other: float | None) -> float | None:
    """Return one / other; None if either is not known or the other is 0."""
    return None if one is None or not other else one / other


Ask = Callable[[Case], list[Reply]]


class Rule(NamedTuple):
    """A cause, and the replies that must all hold for it."""

    cause: str
    meaning: str
    branch: str
    """The question of the tree below which it stands."""
    next_step: str
    ask: Ask


class Rules(list[Rule]):
    """Rules in the order in which they are asked."""

    def add(self, branch: str, next_step: str) -> Callable[[Ask], Ask]:
        """Decorate a function as a rule: its name is the cause, its docstring says what the cause is."""

        def register(ask: Ask) -> Ask:
            self.append(Rule(ask.__name__, cleandoc(ask.__doc__ or ""), branch, next_step, ask))
            return ask

        return register

"""Turns of the interviewer: the text, and the reply that it waits for, for a terminal, a browser or a script.

A conversation is a generator of turns; what is sent back is the reply, plain JSON values in the form that the turn's
`want` describes. `want.check(reply)` raises ParseError for a reply that cannot be used: ask again, nothing is lost.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from interview.drills.score import MOST_NAMED
from interview.mock.scenario import Code, Pick
from prep_common.text import counted
from quizzes.grading import ParseError, asked_keys, check_reply
from quizzes.grading.parse import refuse_other_bases
from quizzes.instance import Instance
from quizzes.question import KeyPoint

MAX_CHARACTERS = 20_000
MARKS = ("hit", "partial", "miss", "contradicted")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(,\d{3})+(\.\d*)?")


@dataclass(frozen=True)
class Want:
    """Form of a reply."""

    def check(self, reply: dict[str, Any]) -> None:
        """Raise ParseError if the reply cannot be used."""


@dataclass(frozen=True)
class Continue(Want):
    """The Enter key alone. Reply: {}."""


@dataclass(frozen=True)
class Prose(Want):
    """An answer in prose. Reply: {"text": "..."}; empty if passed. Clarifying questions: {"clarify": "..."}."""

    lo: int = 60
    hi: int = 150
    """Usual number of words."""

    def check(self, reply: dict[str, Any]) -> None:
        text = reply.get("clarify", reply.get("text"))
        if not isinstance(text, str):
            raise ParseError("the answer is not text", "write it in your own words")
        if len(text) > MAX_CHARACTERS:
            raise ParseError(
                f"that is {counted(len(text), 'character')}; {MAX_CHARACTERS:,} is the limit",
                "say it shorter",
            )


@dataclass(frozen=True)
class Ask(Want):
    """Typed values and options. Reply: {"replies": {key: text}, "confidence": 1..99 or None}, or {"pass": True}.

    Keys: those of `keys(instance)`; "<answer>.interval" for an interval, which may be left out."""

    instance: Instance
    confidence: bool = True
    """Also ask how sure they are that all parts are right."""

    @property
    def keys(self) -> list[str]:
        """Return the keys in the order to ask for them, intervals after their answers."""
        return asked_keys(self.instance)

    def check(self, reply: dict[str, Any]) -> None:
        if reply.get("pass"):
            return
        replies = reply.get("replies")
        if not isinstance(replies, dict):
            raise ParseError("there is no answer", "type your best guess")
        for key in self.keys:
            if key in replies or not key.endswith(".interval"):
                check_reply(self.instance, key, str(replies.get(key, "")), replies)
        sure = reply.get("confidence")
        if sure is not None and not (type(sure) is int and 1 <= sure <= 99):
            raise ParseError(f"{sure!r} is not a confidence", "type a whole number from 1 to 99")


@dataclass(frozen=True)
class Form(Want):
    """Fields that the candidate sets. Reply: {"values": {id: value}, "commit": bool}.

    can_try: a reply with commit False is checked by a run and asked again; without it every reply commits."""

    fields: tuple[Pick, ...]
    values: dict[str, Any]
    """Current values."""
    can_try: bool = False

    def check(self, reply: dict[str, Any]) -> None:
        values = reply.get("values")
        if not isinstance(values, dict):
            raise ParseError("there are no values", "fill in the fields")
        for pick in self.fields:
            read_pick(pick, values.get(pick.id, self.values.get(pick.id)))


@dataclass(frozen=True)
class Menu(Want):
    """One of some actions. Reply: {"pick": id}."""

    options: tuple[tuple[str, str], ...]
    """(id, text)."""
    order: tuple[str, ...] = ()
    """Ids of all options of a step in their order: an option keeps its number while others come and go."""

    @property
    def numbers(self) -> dict[int, str]:
        """Return the ids of the options by the number that chooses them."""
        order = self.order or [name for name, _ in self.options]
        return {order.index(name) + 1: name for name, _ in self.options}

    def check(self, reply: dict[str, Any]) -> None:
        if reply.get("pick") not in dict(self.options):
            raise ParseError(f"{reply.get('pick')!r} is none of the options", "type the number of one")


@dataclass(frozen=True)
class Mark(Want):
    """The candidate's own mark of a key point. Reply: {"mark": one of MARKS}."""

    point: KeyPoint
    closest: str
    """The sentence of the answer that is nearest to it, which may say the opposite; "" if none is near."""
    doubt: str = ""
    """Reason for which a hit would not count: the answer denies the point, as it reads, or comes nowhere near it."""
    answer: str = ""
    """The whole answer, where other questions came between it and its first mark."""

    def check(self, reply: dict[str, Any]) -> None:
        if reply.get("mark") not in MARKS:
            raise ParseError(f"{reply.get('mark')!r} is not a mark", f"type one of {', '.join(MARKS)}")


@dataclass(frozen=True)
class RunExperiment(Want):
    """The front end runs it (`quizzes.experiments.runner.Runner`, with progress). Reply: {"result": {...}} or
    {"failed": reason}. No reply of the candidate."""

    name: str
    args: dict[str, Any]

    def check(self, reply: dict[str, Any]) -> None:
        if "result" not in reply and "failed" not in reply:
            raise ParseError("the run gave nothing", "run it again")


@dataclass(frozen=True)
class RunDrill(RunExperiment):
    """The front end runs the servers of the drill `name` with `live.live`: both runs, or the one with `args["fix"]`."""


@dataclass(frozen=True)
class Hypothesis(Want):
    """The cause of an incident. Reply: {"cause": id, "confidence": 1..99, "evidence": [figures that decide]}."""

    causes: tuple[tuple[str, str], ...]
    """(id, text)."""
    figures: tuple[str, ...]
    """Figures that the looks have shown; without any, the evidence is empty."""

    def check(self, reply: dict[str, Any]) -> None:
        if reply.get("cause") is None:
            raise ParseError("no cause is chosen", "choose one of them")
        if reply["cause"] not in dict(self.causes):
            raise ParseError(f"{reply.get('cause')!r} is none of the causes", "choose one of them")
        sure, named = reply.get("confidence"), reply.get("evidence")
        if not (type(sure) is int and 1 <= sure <= 99):
            raise ParseError(f"{sure!r} is not a confidence", "type a whole number from 1 to 99")
        if not isinstance(named, list) or bool(named) != bool(self.figures):
            raise ParseError("no figure is named", "name the figures that decide, as a look shows them")
        if wrong := [name for name in named if name not in self.figures]:
            raise ParseError(f"no look has shown a figure {wrong[0]!r}", f"use {', '.join(self.figures)}")
        if len(named) > MOST_NAMED:
            raise ParseError(
                f"{len(named)} figures are named", f"name the {MOST_NAMED} that decide, or fewer"
            )


@dataclass(frozen=True)
class Program(Want):
    """Code to write. The front end edits and checks it as often as the candidate likes (`coding.py`).

    Reply: {"source": text, "passed": [check names], "failed": [check names], "tries": number}."""

    code: Code

    def check(self, reply: dict[str, Any]) -> None:
        if not isinstance(reply.get("passed"), list) or not isinstance(reply.get("failed"), list):
            raise ParseError("the program was not checked", "check it first")


@dataclass(frozen=True)
class Rate(Want):
    """The candidate's own rating. Reply: {"ratings": {axis: 1..5}}; axes may be left out."""

    axes: tuple[str, ...]

    def check(self, reply: dict[str, Any]) -> None:
        ratings = reply.get("ratings")
        if not isinstance(ratings, dict) or any(
            axis not in self.axes or type(value) is not int or not 1 <= value <= 5
            for axis, value in ratings.items()
        ):
            raise ParseError("a rating is a whole number from 1 to 5", "type one per axis, or leave it out")


@dataclass(frozen=True)
class Turn:
    """The interviewer speaks and waits."""

    id: str
    """Unique within the session; also the key of the reply in the log."""
    stage: str
    """open, warm, core, probe, quantify, experiment, design, curveball, reverse, self or end."""
    say: str
    """Markdown; may be empty."""
    want: Want
    minutes: float | None = None
    """Soft limit of the step; None if it has none."""
    began: bool = False
    """Whether a new step begins here: its clock starts."""
    chart: dict[str, Any] | None = None
    """The run shown with this turn: {"name", "args", "result", "rows": [(label, said, measured, ok)]}."""
    axes: tuple[str, ...] = field(default=())
    before: str = ""
    """The beginning of `say` that belongs to the step before: what a run showed."""


def read_pick(pick: Pick, value: Any) -> Any:
    """Return the value of a pick. Raises ParseError."""
    if pick.options:
        if str(value) not in pick.options:
            raise ParseError(f"{value!r} is not possible", f"use one of {', '.join(pick.options)}", pick.id)
        return int(value) if str(value).isdecimal() else str(value)
    text = str(value).strip()
    shown = text if len(text) <= 30 else f"{text[:30]}…"
    if "," in text and not _THOUSANDS.fullmatch(text):
        raise ParseError(f"{shown!r} is ambiguous", "write 1.5 or 1500", pick.id)
    refuse_other_bases(text, pick.id)
    try:
        number = float(text.replace(",", "").replace("_", ""))
    except ValueError:
        raise ParseError(f"{shown!r} is not a number", "type a number", pick.id) from None
    assert pick.lo is not None and pick.hi is not None
    if not pick.lo <= number <= pick.hi:  # also for NaN
        raise ParseError(f"{shown} is out of range", f"use {pick.lo:g} to {pick.hi:g}", pick.id)
    if pick.whole and number != int(number):
        raise ParseError(f"{shown} is not a whole number", "type a whole number", pick.id)
    return int(number) if pick.whole else number

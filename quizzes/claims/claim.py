"""One claim: what a source document says, in our words, and how it is decided.

    derivable, simulate, measure-cpu   `test`: an experiment and what its result must show; the verdict is computed
    measure-gpu                        the same, run where a GPU is
    external-fact                      `fact`: what a dated source says
    judgement                          `discussion`: no experiment decides it

A test has one case or more: settings, and an expression that holds if the claim does there. All hold: confirmed.
None: refuted. Some: depends, and the cases say on what. A statistical case may be neither: inconclusive.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from quizzes.question import Source, Strict
from quizzes.topics import TOPICS

Verdict = Literal["confirmed", "refuted", "depends", "inconclusive", "skipped"]
RUNNABLE = ("derivable", "simulate", "measure-cpu", "measure-gpu")


class Case(Strict):
    """One setting of the test."""

    when: str
    """The condition in words: what a verdict of "depends" depends on."""
    args: dict[str, Any] = {}
    """On top of the test's."""
    holds: str
    """An expression over result and args: true if the claim is right here."""
    fails: str | None = None
    """With a measurement: true if it is wrong here. Neither of the two: inconclusive. Without: not holds."""


class Figure(Strict):
    """The number that the claim gives, and the one that the engine gives."""

    value: str
    """An =expression over result (of the first case)."""
    unit: str = ""
    says: float | str | None = None
    """What the claim says; None if it gives no number."""


class Test(Strict):
    """Fixed in advance."""

    __test__ = False  # not a pytest class

    run: str
    args: dict[str, Any] = {}
    cases: Annotated[list[Case], Field(min_length=1)]
    figure: Figure | None = None


class Fact(Strict):
    """What a source that can be looked up says, and of when."""

    verdict: Literal["confirmed", "refuted", "depends"]
    says: str
    source: Source


class Discussion(Strict):
    """For claims that no experiment decides."""

    for_: Annotated[str, Field(alias="for")]
    against: str
    better: str
    """What a strong candidate says instead."""


class Flip(Strict):
    """A challenge: find arguments that turn the verdict over."""

    ask: str
    args: dict[str, Any]
    """A witness: with these, the first case comes out the other way."""


class Claim(Strict):
    """A statement before the court."""

    id: Annotated[str, Field(pattern=r"^S[0-4]-\d{2,3}$")]
    topic: str
    where: str
    """Its place in the document: "Q3"."""
    claim: str
    """In our words."""
    kind: Literal["derivable", "simulate", "measure-cpu", "measure-gpu", "external-fact", "judgement"]
    test: Test | None = None
    fact: Fact | None = None
    discussion: Discussion | None = None
    wording: str = ""
    """What to say in an interview: a template over result (of the first case), results (of all), verdict, args."""
    flip: Flip | None = None

    @model_validator(mode="after")
    def _whole(self) -> Claim:
        if self.topic not in TOPICS:
            raise ValueError(f"topic {self.topic!r} is unknown; known: {', '.join(TOPICS)}")
        if self.kind in RUNNABLE and (self.test is None or not self.wording):
            raise ValueError(f"a claim of kind {self.kind} needs a test and a wording")
        if self.kind == "external-fact" and self.fact is None and self.test is None:
            raise ValueError("an external fact needs a fact with its source, or a test")
        if self.kind == "judgement" and self.discussion is None and self.test is None:
            raise ValueError("a judgement needs a discussion, or a test")
        return self

"""A claim: a statement of a source document, in our words, and how to decide it.

    derivable, simulate, measure-cpu   `test`: an experiment and what its result must show; the verdict is computed
    measure-gpu                        the same, on a machine with a GPU
    external-fact                      `fact`: a dated source decides
    judgement                          `discussion`: no experiment can decide

A test has one or more cases: settings, and an expression that is true if the claim holds for them. A case counts
only if it lies within the claim's own conditions; one that lies `outside` is shown and not counted. The test's form
says what the cases decide; see `court`. A statistical case may be undecided: inconclusive.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from quizzes.question import Source, Strict
from quizzes.topics import TOPICS

Verdict = Literal["confirmed", "refuted", "depends", "outdated", "inconclusive", "skipped"]
Form = Literal["general", "existential", "universal", "conjunctive"]
RUNNABLE = ("derivable", "simulate", "measure-cpu", "measure-gpu")


class Case(Strict):
    """One setting of the test."""

    when: str
    """The condition in words, on which a verdict "depends" depends."""
    run: str = ""
    """Its experiment, if it is not the test's; then `args` are all its arguments."""
    args: dict[str, Any] = {}
    """Arguments in addition to the test's."""
    holds: str
    """An expression over result and args: true if the claim is right in this case."""
    fails: str | None = None
    """For measurements: true if the claim is wrong; neither true: inconclusive. Default: not holds."""
    outside: str = ""
    """Reason why the case lies outside the claim's own conditions; shown, not counted."""
    setting: str = ""
    """Setting of a conjunctive claim: cases that share it are the parts of one conjunction."""
    until: Source | None = None
    """The last release for which this case speaks, and its source: what was true then."""


class Figure(Strict):
    """The number in the claim and the engine's number."""

    value: str
    """An =expression over result (of the first case)."""
    unit: str = ""
    says: float | str | None = None
    """The claim's number; None if it has none."""


class Test(Strict):
    """A test that is fixed before any run."""

    __test__ = False  # not a pytest class

    run: str
    args: dict[str, Any] = {}
    form: Form = "general"
    """existential: "can", "may", "need not"; universal: "always", "all", "no"; conjunctive: "A, and B"."""
    cases: Annotated[list[Case], Field(min_length=1)]
    figure: Figure | None = None

    @model_validator(mode="after")
    def _decides(self) -> Self:
        if all(case.outside or case.until for case in self.cases):
            raise ValueError("a test needs a case that lies within the claim's conditions today")
        if any(case.until and not case.until.version for case in self.cases):
            raise ValueError("`until` needs the version of its source")
        return self


class Fact(Strict):
    """A statement of a dated source."""

    verdict: Literal["confirmed", "refuted", "depends", "outdated", "inconclusive"]
    """inconclusive: no source decides, because the claim names no version, load or measure."""
    says: str
    source: Source
    until: str = ""
    """Last release for which an outdated claim was true."""
    right_if: str = ""
    """A case within the conditions of a claim that depends, in which it is right by this source."""
    wrong_if: str = ""
    """Another one, in which it is wrong."""

    @model_validator(mode="after")
    def _decides(self) -> Self:
        if (self.verdict == "outdated") != bool(self.until):
            raise ValueError("`until` names the last release for which an outdated claim was true")
        if (self.verdict == "depends") != bool(self.right_if and self.wrong_if):
            raise ValueError("`right_if` and `wrong_if` name the two cases of a claim that depends")
        return self


class Discussion(Strict):
    """Arguments about a claim that no experiment can decide."""

    for_: Annotated[str, Field(alias="for")]
    against: str
    better: str
    """A better statement, as strong candidates make it."""


class Flip(Strict):
    """A challenge: find arguments that reverse the verdict."""

    ask: str
    args: dict[str, Any]
    """A witness: these arguments reverse the outcome of the first case."""


class Claim(Strict):
    """A claim with its test, fact or discussion."""

    id: Annotated[str, Field(pattern=r"^S[0-4]-\d{2,3}$")]
    topic: str
    where: str
    """Its place in the document: "Q3"."""
    claim: str
    """The statement in our words."""
    kind: Literal["derivable", "simulate", "measure-cpu", "measure-gpu", "external-fact", "judgement"]
    test: Test | None = None
    fact: Fact | None = None
    discussion: Discussion | None = None
    wording: str = ""
    """The sentence to say: a template over result (of the first case), results (of all), verdict, args."""
    flip: Flip | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.topic not in TOPICS:
            raise ValueError(f"topic {self.topic!r} is unknown; known: {', '.join(TOPICS)}")
        if self.kind in RUNNABLE and (self.test is None or not self.wording):
            raise ValueError(f"a claim of kind {self.kind} needs a test and a wording")
        if self.kind == "external-fact" and self.fact is None and self.test is None:
            raise ValueError("an external fact needs a fact with its source, or a test")
        if self.kind == "judgement" and self.discussion is None and self.test is None:
            raise ValueError("a judgement needs a discussion, or a test")
        return self

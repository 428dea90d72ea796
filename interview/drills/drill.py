"""The file of a drill, and the list of all drills.

A drill is one YAML in `catalogue/`: a stage (servers and settings), a load, one fault, and the words of the exercise.
Three stages follow from it: the faulty one, its healthy twin, and the faulty one with a fix. README.md has an example.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from engine.sim.workload import Lengths
from interview.drills.figures import FIGURES, LOOKS
from prep_common.names import unknown_name
from prep_common.text import counted
from quizzes import yaml_files
from quizzes.yaml_files import Index, UnknownId

HERE = Path(__file__).parent
FOLDER = HERE / "catalogue"
Value = str | int | float | bool
Settings = dict[str, Value | list[str] | None]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Hook(_Part):
    """A function of faults.py that patches the server's process, with its arguments."""

    name: str
    args: dict[str, Any] = {}


class Special(_Part):
    """Options and a hook of one server, as a candidate version has them."""

    set: Settings = {}
    hook: Hook | None = None


class Change(_Part):
    """A change of a stage: options of the servers, hooks, settings of the gateway, the number of servers."""

    set: Settings = {}
    """Option of `prep serve`, without dashes -> value; true and false are switches, null removes the option."""
    hook: Hook | None = None
    gateway: dict[str, Any] = {}
    """Settings of the gateway to replace."""
    replicas: int | None = Field(default=None, ge=1, le=3)
    last: Special | None = None
    """Options and a hook of the last server alone."""
    load: dict[str, dict[str, Any]] = {}
    """Group of the load -> fields to replace: a fault, or a fix, on the side of the clients."""

    @property
    def is_empty(self) -> bool:
        return self == Change()


class Fix(Change):
    """A fix to choose from. All are applied for real, also those that do not help."""

    say: str = Field(min_length=5)
    helps: bool = False
    keeps_hook: bool = True
    """False: the fault's hook is removed."""


class Group(_Part):
    """Requests of one kind. Lengths are as in `prep load`: 100, 50-150, lognormal:MEAN:SIGMA."""

    rate: float = Field(gt=0, le=200)
    prompt: str
    output: str
    start_s: float = Field(default=0, ge=0)
    seconds: float | None = Field(default=None, gt=0)
    """Duration; by default until the load ends."""
    arrivals: Literal["poisson", "gamma", "constant"] = "poisson"
    cv: float = 2.0
    num_prefixes: int = Field(default=0, ge=0)
    prefix_len: int = Field(default=0, ge=0)
    prefixes_of: str | None = None
    """Another group, which sends the same prefixes."""
    text: bool = False
    """Prompts are text, which the server tokenises: `prompt` counts words."""
    questions: bool = False
    """Prompts are questions with known answers about a shop: `prompt` counts its titles."""
    frame: str = "{}"
    """Text around these words, such as the roles of a chat."""
    patience_s: float | None = Field(default=None, gt=0)
    attempts: int = Field(default=1, ge=1, le=5)
    backoff_s: float = Field(default=0, ge=0)
    """Pause before the second attempt; each further one is twice as long."""
    body: dict[str, Any] = {}
    """Further fields of each request."""
    headers: dict[str, str] = {}
    counts: bool = True
    """False: the objective leaves these requests out, as those whose clients hang up on purpose."""

    @model_validator(mode="after")
    def _lengths_are_right(self) -> Group:
        Lengths.parse(self.prompt), Lengths.parse(self.output)
        return self


class Load(_Part):
    """All requests of a run."""

    seconds: float = Field(gt=0, le=12)
    seed: int = 1
    groups: dict[str, Group] = Field(min_length=1)


class Pace(_Part):
    """Shortest time of a step: the model is small, and the drill is about a large one."""

    step_ms: float = Field(default=10.0, ge=0)
    token_ms: float = Field(default=0.15, ge=0)
    """Per prompt token in the step."""
    row_ms: float = Field(default=0.0, ge=0)
    """Per answer that gets a token in the step."""


class Stage(_Part):
    """Servers on this machine, behind a gateway if there is one."""

    model: str = "shop"
    last: Special | None = None
    """The last server differs from the others."""
    pace: Pace = Pace()
    set: Settings = {}
    replicas: int = Field(default=1, ge=1, le=3)
    gateway: dict[str, Any] | None = None
    """Settings of `prep gateway`, without backends."""
    hook: Hook | None = None


class Objective(_Part):
    """The objective of the service: a share of the requests within limits in milliseconds."""

    ttft_ms: float | None = Field(default=None, gt=0)
    tpot_ms: float | None = Field(default=None, gt=0)
    e2e_ms: float | None = Field(default=None, gt=0)
    gap_ms: float | None = Field(default=None, gt=0)
    """Longest pause within an answer."""
    least_tokens: int | None = Field(default=None, ge=1)
    """Shortest whole answer."""
    least_ttft_ms: float | None = Field(default=None, gt=0)
    """An answer that begins sooner tells a tenant what others asked."""
    right: bool = False
    """A question with a known answer must be answered right."""
    clock_ms: float | None = Field(default=None, gt=0)
    """Difference between the time in the request log and the client's."""
    sheds: bool = False
    """Requests refused with status 429 are left out: the service may protect itself."""
    share: float = Field(default=0.9, gt=0, le=1)

    @property
    def in_words(self) -> str:
        """Return the objective as the person on call knows it: "TTFT ≤ 200 ms for 90% of the requests"."""
        names = {
            "ttft_ms": "TTFT",
            "tpot_ms": "time per token",
            "e2e_ms": "whole answer",
            "gap_ms": "longest pause",
        }
        limits = [
            f"{words} ≤ {value:,.0f} ms"
            for name, words in names.items()
            if (value := getattr(self, name)) is not None
        ]
        if self.least_tokens:
            limits.append(f"at least {counted(self.least_tokens, 'token')}")
        if self.right:
            limits.append("a right answer")
        return f"{', '.join(limits) or 'an answer'} for {self.share:.0%} of the requests"


class Debrief(_Part):
    runner_up: str
    """The hypothesis that fits best after the right one."""
    question: str = Field(min_length=10)
    """The question that would have excluded it."""
    say: str = Field(min_length=20)
    """The mechanism, in the words of an interview."""


class Drill(_Part):
    schema_version: Literal[1] = Field(alias="schema")
    id: str = Field(pattern=r"^[a-z][a-z0-9-]+$")
    number: int = Field(ge=1, le=99)
    """Names the drill to the learner, as D04: the id would give the cause away."""
    title: str = Field(min_length=10, max_length=90)
    """The symptom in the words of the person on call. It does not name the cause."""
    level: Literal[1, 2, 3]
    sources: list[str] = []
    stage: Stage = Stage()
    load: Load
    fault: Change
    objective: Objective
    cause: str
    """Id of the right hypothesis, in causes.yaml."""
    distractors: Annotated[list[str], Field(min_length=3, max_length=6)]
    evidence: dict[str, Literal[-1, 1]] = Field(min_length=1)
    """Figure that decides -> its direction against the healthy twin."""
    fixes: Annotated[list[Fix], Field(min_length=2, max_length=6)]
    debrief: Debrief

    @property
    def code(self) -> str:
        return f"D{self.number:02}"

    @model_validator(mode="after")
    def _names_exist(self) -> Drill:
        known = causes()
        for name in (self.cause, *self.distractors, self.debrief.runner_up):
            if name not in known:
                raise ValueError(f"{name!r} is not in causes.yaml")
        if self.cause in self.distractors or self.debrief.runner_up not in self.distractors:
            raise ValueError("the runner-up is one of the distractors, and the cause is not")
        if wrong := [name for name in self.evidence if name not in FIGURES]:
            raise ValueError(f"evidence {wrong[0]!r} is not a figure; figures are {', '.join(FIGURES)}")
        if not any(FIGURES[name].look in LOOKS for name in self.evidence):
            raise ValueError("no look shows the evidence")
        if self.fault.is_empty:
            raise ValueError("the fault changes nothing")
        if sum(fix.helps for fix in self.fixes) == 0 or all(fix.helps for fix in self.fixes):
            raise ValueError("at least one fix helps, and at least one does not")
        others = [group.prefixes_of for group in self.load.groups.values() if group.prefixes_of]
        if wrong := [name for name in others if name not in self.load.groups]:
            raise ValueError(f"prefixes_of names {wrong[0]!r}, which is not a group of the load")
        for change in (self.fault, *self.fixes):
            if wrong := [name for name in change.load if name not in self.load.groups]:
                raise ValueError(f"the load has no group {wrong[0]!r}")
        return self

    def is_met(self, good: float) -> bool:
        """Return whether this share of good requests meets the objective."""
        return good >= self.objective.share

    @property
    def hypotheses(self) -> list[str]:
        """Ids of causes to choose from, in an order that does not tell the right one."""
        return sorted([self.cause, *self.distractors])

    @property
    def right_fixes(self) -> list[int]:
        return [number for number, fix in enumerate(self.fixes, 1) if fix.helps]

    def changed(self, *changes: Change) -> tuple[Stage, Load]:
        """Return the healthy stage and load after changes, each on top of the last."""
        stage, load = self.stage.model_dump(), self.load.model_dump()
        for change in changes:
            stage["set"] |= change.set
            if change.hook is not None:
                stage["hook"] = change.hook.model_dump()
            elif isinstance(change, Fix) and not change.keeps_hook:
                stage["hook"] = None
            if change.gateway:
                stage["gateway"] = {**(stage["gateway"] or {}), **change.gateway}
            stage["replicas"] = change.replicas or stage["replicas"]
            if change.last is not None:
                stage["last"] = change.last.model_dump()
            for name, fields in change.load.items():
                load["groups"][name] |= fields
        return Stage.model_validate(stage), Load.model_validate(load)


@cache
def causes() -> dict[str, str]:
    """Return all hypotheses: id -> sentence."""
    texts: dict[str, str] = yaml.safe_load((HERE / "causes.yaml").read_text(encoding="utf-8"))
    return texts


def load_drills(folder: Path = FOLDER) -> Index[Drill]:
    """Load all drills. Broken files are left out and listed in `problems`."""
    schema = [HERE / name for name in ("drill.py", "figures.py", "causes.yaml")]
    documents, problems = yaml_files.load(folder, Drill.model_validate, schema)
    kept = {document.data["id"]: document for document in documents}
    return Index({name: Drill.model_validate(d.data) for name, d in kept.items()}, problems, kept)


SAME_ID = 0.85
"""Similarity from which a word is a mistyped id."""


def find_drill(drill_id: str) -> Drill:
    """Return a drill by its code, D04, or its id. Raises UnknownId, which names a very similar id: ids tell causes, and
    only who knows one already should read it."""
    drills = load_drills()
    if drill_id in drills.entries:
        return drills.entries[drill_id]
    if re.fullmatch(r"[dD]?\d{1,2}", drill_id):
        for drill in drills:
            if drill.number == int(drill_id.lstrip("dD")):
                return drill
    lists = "prep drill list shows all of them"
    raise UnknownId(unknown_name("no drill is called", drill_id, drills.entries, lists, cutoff=SAME_ID))

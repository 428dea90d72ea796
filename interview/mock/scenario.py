"""Schema of a scenario file `scenarios/<role>/<name>.yaml`: one interview question with everything it can lead to.

    header          id, title, role, level, kind, topics, sources
    draw            params, require                  new numbers for every session
    brief           what the candidate is told; clarifications: what they get if they ask
    steps           a main line, and follow-ups that hang on its steps by `after` and `when`

A step asks for exactly one thing. Its form follows from its fields:

    keypoints       prose, marked by the candidate against key points that later steps probe
    answers, choices            a number or an option, graded by machine
    + experiment    predict, then the interviewer runs it; `picks` are the candidate's own numbers, its arguments
    canvas          a system design as fields; every change is checked by formula and simulation
    incident        look at figures of a server, name the cause, repair: a drill
    code            an exercise of the lessons, a lab, or a program of the bank to repair
    reverse         refute a wrong answer by choosing the experiment that shows it

Texts are Jinja templates over the params, `said` (numbers picked so far: said.<step>.<pick>) and, after a run,
`result`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from interview.drills.drill import find_drill
from quizzes.question import Answer, Choice, Id, KeyPoint, Mistake, Param, Run, Source, Strict
from quizzes.topics import ROLES, TOPICS

LEVELS = ("mid", "senior", "staff")
STAGE_NAMES = {
    "open": "opening",
    "warm": "warm-up",
    "core": "your answer",
    "probe": "follow-up",
    "quantify": "a number",
    "experiment": "experiment",
    "design": "design",
    "curveball": "curveball",
    "reverse": "refute it",
    "self": "your own rating",
}
"""The words of a stage for people."""
AXES = ("correctness", "mechanism", "quantification", "tradeoffs", "diagnosis", "communication")
STAGES = ("warm", "core", "probe", "quantify", "experiment", "design", "curveball", "reverse")
"""Stages of a session in their order. Follow-ups belong to the stage `probe`."""
FORMS = ("keypoints", "canvas", "incident", "code", "reverse")

Axis = Literal["correctness", "mechanism", "quantification", "tradeoffs", "diagnosis", "communication"]
Stage = Literal["core", "probe", "quantify", "experiment", "design", "curveball", "reverse"]
Texts = Annotated[list[str], Field(min_length=1)]
Share = Annotated[float, Field(ge=0, le=1)]


def role_name(role: str) -> str:
    """Return the words of a role: "inference engineer"."""
    return ROLES.get(role, role).partition(":")[0]


class Clarification(Strict):
    """A fact that the candidate gets if they ask for it."""

    id: Id
    words: Texts
    """Words or phrases, lower case; a question that has one of them asks for this fact."""
    answer: str


class Pick(Strict):
    """A number, or one of some options, that the candidate chooses freely. Experiments run with it."""

    id: Id
    ask: str
    unit: str = ""
    lo: float | None = None
    hi: float | None = None
    whole: bool = True
    options: list[str] = []
    """Whole numbers among them arrive as numbers."""
    start: Any = None
    """Shown first; canvases start with it."""

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if bool(self.options) == (self.lo is not None and self.hi is not None):
            raise ValueError(f"pick {self.id}: give either options, or lo and hi")
        return self


class Goal(Strict):
    """A condition on the result of a run: "p99 TTFT under 2 s"."""

    say: str
    holds: str
    """An =expression over params, said and result."""
    shows: str = ""
    """The measured figure, a template: "{{ result.ttft_p99 | round(2) }} s"."""


class Canvas(Strict):
    """A system design as fields. `run` gets `run.args` and the fields as arguments."""

    run: Run
    fields: Annotated[list[Pick], Field(min_length=3)]
    goals: Annotated[list[Goal], Field(min_length=2)]
    cost: str
    """An =expression over result: what the design costs, in the unit of `cost_unit`."""
    cost_unit: str = "$/h"
    formula: str
    """A template over params, said and the fields: the estimate by hand, shown beside the simulation."""
    solution: dict[str, Any]
    """Fields that meet all goals; lint runs them. A design that costs at most 1.3 times as much scores 5."""
    changes: list[CanvasChange] = []


class CanvasChange(Strict):
    """A curveball of the interviewer during a design: other traffic, a broken replica."""

    say: str
    args: dict[str, Any]
    solution: dict[str, Any]


class Incident(Strict):
    """A server with one thing wrong: a drill of interview/drills."""

    drill: str

    @field_validator("drill")
    @classmethod
    def _exists(cls, name: str) -> str:
        return find_drill(name).id


class Code(Strict):
    """Exactly one of: an exercise of a lesson ("07.1"), a lab in Python ("rate-limiter"), a program to repair (a folder
    of quizzes/autopsies)."""

    exercise: Annotated[str | None, Field(pattern=r"^\d\d\.\d$")] = None
    lab: Annotated[str | None, Field(pattern=r"^[a-z-]+$")] = None
    program: str | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(source is not None for source in (self.exercise, self.lab, self.program)) != 1:
            raise ValueError("code needs exactly one of exercise, lab and program")
        return self


class Test(Strict):
    """An experiment that may refute a wrong answer."""

    id: Id
    text: str
    run: Run
    refutes: str
    """An =expression over params and result: whether it shows that the answer is wrong."""
    shows: str
    """A template over result: what came out."""


class Reverse(Strict):
    """A candidate's wrong answer. The one being interviewed chooses the experiment that refutes it."""

    answer: str
    tests: Annotated[list[Test], Field(min_length=3)]
    flaw: Annotated[list[Choice], Field(min_length=3)]
    """Options for the flaw; one is right."""


class Step(Strict):
    """One thing that the interviewer asks."""

    id: Id
    stage: Stage
    say: Texts
    """The interviewer's words; one of these wordings per session."""
    minutes: Annotated[float, Field(gt=0, le=30)] = 3
    difficulty: Annotated[int, Field(ge=1, le=5)] = 3
    axes: Annotated[list[Axis], Field(min_length=1)]
    """Axes on which the answer is evidence."""
    after: str | None = None
    """A follow-up of this step; without it the step is on the main line."""
    when: Annotated[
        str | None, Field(pattern=r"^(missing:\w+|contradicted:\w+|no_number|sure|missed|extension)$")
    ] = None
    """Cause of a follow-up. missing, contradicted: about a key point (or its probe). no_number: the prose had none.
    sure: confident and wrong, or an interval that missed. missed: the prediction was wrong. extension: it went well."""
    picks: list[Pick] = []
    answers: list[Answer] = []
    choices: list[Choice] = []
    experiment: Run | None = None
    oracle: dict[str, str] = {}
    """As in questions: answer -> an independent expression or `module.function` of quizzes/oracles; lint compares."""
    mistakes: list[Mistake] = []
    keypoints: list[KeyPoint] = []
    """`probes` name steps of this scenario (stage probe) that are asked if the candidate claims the point."""
    canvas: Canvas | None = None
    incident: Incident | None = None
    code: Code | None = None
    reverse: Reverse | None = None
    explain: str = ""
    """The interviewer's comment on the result; a template. Told after an experiment, and in the report."""
    rescue: str = ""
    """A hint after silence or a wrong try; caps the step's evidence at 3."""
    five: str = ""
    """An answer that would score 5, for the report."""
    learn: list[str] = []
    """References for learning it: L10 (lesson), swap-tier (lab), an id of the bank, of a claim (S1-44)."""

    @property
    def form(self) -> str:
        """Return prose, canvas, incident, code, reverse, experiment or ask."""
        for name in FORMS:
            if getattr(self, name):
                return "prose" if name == "keypoints" else name
        return "experiment" if self.experiment is not None else "ask"

    @model_validator(mode="after")
    def _whole(self) -> Self:
        for problem in _step_problems(self):
            raise ValueError(f"step {self.id}: {problem}")
        return self


class Scenario(Strict):
    """One interview question with everything it can lead to."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    id: Annotated[str, Field(pattern=r"^[a-z]+\.[a-z0-9_]+$")]
    title: Annotated[str, Field(max_length=70)]
    role: Literal["inference", "kernel", "platform", "sre", "applied"]
    level: Literal["mid", "senior", "staff"]
    kind: Literal["discussion", "design", "coding", "incident", "kernel"]
    topics: Annotated[list[str], Field(min_length=1)]
    sources: Annotated[list[Source], Field(min_length=1)]
    params: dict[str, Param] = {}
    require: list[str] = []
    brief: str
    clarifications: Annotated[list[Clarification], Field(min_length=3)]
    steps: Annotated[list[Step], Field(min_length=6)]

    def step(self, step_id: str) -> Step:
        """Return a step. Raises KeyError."""
        return {step.id: step for step in self.steps}[step_id]

    @property
    def main_line(self) -> list[Step]:
        """Return the steps that are no follow-ups, in the order of their stages."""
        return sorted(
            (step for step in self.steps if step.after is None), key=lambda s: STAGES.index(s.stage)
        )

    def follow_ups(self, step_id: str) -> list[Step]:
        return [step for step in self.steps if step.after == step_id]

    @model_validator(mode="after")
    def _whole(self) -> Self:
        for problem in _problems(self):
            raise ValueError(problem)
        return self


def _step_problems(step: Step) -> Iterator[str]:
    forms = [name for name in FORMS if getattr(step, name)]
    if len(forms) > 1:
        yield f"asks for several things: {', '.join(forms)}"
    if not forms and not step.answers and not step.choices:
        yield "asks for nothing: it needs answers, choices, keypoints, canvas, incident, code or reverse"
    if (step.after is None) != (step.when is None):
        yield "`after` and `when` go together"
    if (step.after is not None) != (step.stage == "probe"):
        yield "follow-ups, and only they, are of stage probe"
    if step.after is None and len(step.say) < 2:
        yield "a step of the main line has two wordings or more"
    if step.choices and sum(choice.right is not False for choice in step.choices) < 1:
        yield "no choice is right"


def _problems(scenario: Scenario) -> Iterator[str]:
    for topic in scenario.topics:
        if topic not in TOPICS:
            yield f"topic {topic!r} is unknown; known: {', '.join(TOPICS)}"
    ids = [step.id for step in scenario.steps]
    yield from (f"two steps are called {name}" for name, count in Counter(ids).items() if count > 1)
    stages: Counter[str] = Counter(step.stage for step in scenario.main_line)
    for stage, least in (("core", 1), ("quantify", 1), ("experiment", 2), ("curveball", 1), ("reverse", 1)):
        if stages[stage] < least:
            yield f"the main line has {stages[stage]} steps of stage {stage}; it needs {least}"
    for step in scenario.steps:
        if step.after is not None and step.after not in ids:
            yield f"step {step.id} follows {step.after!r}, which does not exist"
        for point in step.keypoints:
            yield from (f"step {step.id}: probe {p!r} does not exist" for p in point.probes if p not in ids)
    design = any(step.canvas for step in scenario.steps)
    if scenario.kind == "design" and not design:
        yield "kind design needs a step with a canvas"
    if scenario.kind == "incident" and not any(step.incident for step in scenario.steps):
        yield "kind incident needs a step with an incident"
    if scenario.kind == "coding" and not any(step.code for step in scenario.steps):
        yield "kind coding needs a step with code"


Canvas.model_rebuild()

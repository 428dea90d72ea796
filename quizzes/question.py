"""One question: a YAML file in `bank/<topic>/<name>.yaml`, strict, without code in it.

    header      id, title, kind, stage, roles, difficulty, minutes, covers, sources
    draw        params, require                    new figures for every seed
    ask         prompt, choices | items | answers
    decide      experiment, answers.expect, oracle the engine decides; an oracle written apart must agree
    teach       hints, mistakes, keypoints, followups, explain, interview

Text fields are Jinja templates over the params; `explain`, `say` and `followups` also see `result` and `expected`.
Values that start with = are expressions (`expressions.py`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from quizzes.topics import TOPICS

RESERVED = ("choice", "order")
"""Keys of replies that name options; no answer has such an id."""


class Strict(BaseModel):
    """No unknown fields, no conversions: `no` is not a string and 12:30 is not a number of seconds."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True, frozen=True)


Id = Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
Role = Literal["inference", "kernel", "platform", "sre"]
Kind = Literal["predict", "numeric", "choice", "multi", "order", "debug", "code", "free", "design"]
Stage = Literal["screen", "technical", "deep_dive", "design", "coding", "incident", "manager"]
AnswerType = Literal["int", "float", "bool", "word", "words", "ints"]


class Source(Strict):
    """Further reading: a paper's section, a file of vLLM (0.32 unless `version` says otherwise), of this engine."""

    ref: str
    url: str | None = None
    version: str | None = None
    as_of: Annotated[str | None, Field(pattern=r"^\d{4}(-\d{2}){0,2}$")] = None
    """Date of a publication, or the month in which changing pages and code were read: 2026-11."""

    @property
    def is_ours(self) -> bool:
        """Whether it is a file of this repository, which changes along with the question."""
        return self.ref.startswith(("app/", "engine", "kernels/", "quizzes/", "tests/"))


class IntRange(Strict):
    n: int | None = None
    """How many; for `ints`."""
    lo: int
    hi: int
    step: int = 1


class FloatRange(Strict):
    lo: float
    hi: float
    digits: int = 2


class Param(Strict):
    """How a figure of the question is drawn: exactly one of these."""

    const: Any = None
    choice: list[Any] | None = None
    int_: Annotated[IntRange | None, Field(alias="int")] = None
    ints: IntRange | None = None
    float_: Annotated[FloatRange | None, Field(alias="float")] = None
    expr: str | None = None
    """Computed from the params above it: "=a * 2"."""

    @model_validator(mode="after")
    def _one(self) -> Param:
        if len(self.model_fields_set) != 1:
            raise ValueError("a param has exactly one of const, choice, int, ints, float, expr")
        return self


class Band(Strict):
    """Part of the points for coming close: within rel of the truth, or within a factor."""

    rel: float | None = None
    factor: float | None = None
    points: float


class Check(Strict):
    """How close is right; one of these. Without: exact for whole numbers, words and lists, rel 0.02 for floats."""

    exact: bool | None = None
    abs: float | None = None
    rel: float | None = None
    factor: float | None = None
    sign: bool | None = None
    bands: list[Band] | None = None


class Answer(Strict):
    """One thing the learner types."""

    id: Id
    ask: str = ""
    """Words before the prompt of the terminal; the id where empty."""
    type: AnswerType
    unit: str | None = None
    """What the expected value is in: steps, tokens, GiB, ms, % ... Learners may answer in another of its kind."""
    expect: Any = None
    """An =expression over params and result, or a value where nothing can compute it."""
    accept: list[str] = []
    """For words: other spellings."""
    check: Check = Check()
    points: float = 1
    interval: float | None = None
    """Also ask for an interval that holds the truth with this probability, 0.8 for instance."""


class Choice(Strict):
    """An option. `right` is typed only where no experiment can say; then say why."""

    id: Id
    text: str
    right: bool | str = False
    """True, or an =expression over params and result."""
    why: str = ""
    """Why it is right or what is wrong with it, shown after the answer."""


class Item(Strict):
    """One of the things to put in order."""

    id: Id
    text: str


class Run(Strict):
    """An experiment with its arguments."""

    run: str
    args: dict[str, Any] = {}


class Hint(Strict):
    cost: Annotated[float, Field(ge=0, le=1)] = 0.25
    text: str


class When(Strict):
    """A wrong answer's signature: the answer equals this value, or this option was chosen."""

    answer: Id
    equals: Any


class Mistake(Strict):
    """A wrong answer that people give, and what it says about their thinking."""

    id: Id
    when: When
    say: str


class KeyPoint(Strict):
    """Something a good free-text answer contains."""

    id: Id
    say: str
    weight: float = 1
    must: bool = False
    probes: list[str] = []
    """Ids of machine-graded questions that test this point."""
    good: Annotated[list[str], Field(min_length=1)]
    """Ways to say it: canaries for a judge."""
    bad: Annotated[list[str], Field(min_length=1)]
    """Ways to say the opposite."""


class FollowUp(Strict):
    """What an interviewer asks next."""

    if_: Annotated[str, Field(alias="if")] = "true"
    """correct, wrong, or an expression over answers and confidence."""
    ask: str
    experiment: Run | None = None
    pass_: Annotated[str | None, Field(alias="pass")] = None
    """An expression over params, reply and result: the challenge is met."""
    witness: dict[str, Any] | None = None
    """Arguments with which it is met, so that lint can show that it can be."""


class Interview(Strict):
    """How to say it across the table, in our own words."""

    probing: str
    """What the interviewer wants to find out."""
    short: str
    """30 seconds."""
    long: str
    """2 minutes."""
    deep: str = ""
    """When they keep drilling."""
    mistakes: list[str] = []
    """What weak answers say."""
    rubric: dict[Literal["1", "2", "3", "4", "5"], str] = {}


class Code(Strict):
    """A program to mend: folder `quizzes/autopsies/<folder>/` with given.py, checks.py, solution.py, mutants.py."""

    folder: Id
    seconds: float = 20.0
    megabytes: int = 1500


class Question(Strict):
    """A family of questions: one for every seed."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    id: Annotated[str, Field(pattern=r"^[a-z0-9_]+\.[a-z0-9_]+$")]
    title: Annotated[str, Field(max_length=80)]
    kind: Kind
    stage: Stage
    roles: Annotated[list[Role], Field(min_length=1)]
    difficulty: Annotated[int, Field(ge=1, le=5)]
    """1 recall, 2 apply, 3 combine, 4 design under constraints, 5 research."""
    minutes: Annotated[float, Field(gt=0, le=60)]
    covers: list[Annotated[str, Field(pattern=r"^Q\d{3}$")]] = []
    """Numbered interview questions that it answers."""
    contradictions: list[Annotated[str, Field(pattern=r"^[XY]\d+$")]] = []
    """Pairs of statements of the source documents that it decides."""
    claims: list[str] = []
    tags: list[str] = []
    sources: Annotated[list[Source], Field(min_length=1)]
    params: dict[str, Param] = {}
    require: list[str] = []
    """Redraw until these hold, at most 100 times."""
    prompt: str
    exhibit: str = ""
    """Code, a log or a table to look at: shown as it is, after the prompt."""
    experiment: Run | None = None
    run_first: bool = False
    """The experiment runs before the question is asked, and the exhibit is a template over its result: a dashboard."""
    choices: list[Choice] = []
    shuffle: bool = True
    items: list[Item] = []
    """For order; the expected order is that of `answers[0].expect` or, without it, the order written here."""
    answers: list[Answer] = []
    code: Code | None = None
    oracle: dict[str, str] = {}
    """Answer id -> an =expression over params, or `module.function` in quizzes/oracles, called with the params it
    names. Written apart from the experiment: lint compares them over 20 seeds."""
    confidence: bool = True
    hints: list[Hint] = []
    mistakes: list[Mistake] = []
    keypoints: list[KeyPoint] = []
    followups: list[FollowUp] = []
    explain: str
    interview: Interview | None = None
    status: Literal["draft", "stable", "retired"] = "stable"
    revision: Annotated[int, Field(ge=1)] = 1
    """Raise it when answers change meaning: statistics then start anew, cards stay."""

    @property
    def topic(self) -> str:
        return self.id.split(".")[0]

    @property
    def is_machine_graded(self) -> bool:
        """Decided by counters, formulas, checks or probes."""
        return self.kind not in ("free", "design") or any(point.probes for point in self.keypoints)

    @model_validator(mode="after")
    def _whole(self) -> Question:
        for problem in _problems(self):
            raise ValueError(problem)
        return self


def _problems(q: Question) -> list[str]:
    """What the types alone cannot say."""
    found = []
    if q.topic not in TOPICS:
        found.append(f"topic {q.topic!r} is unknown; known: {', '.join(TOPICS)}")
    needs = {
        "predict": ("experiment", "answers"),
        "numeric": ("answers",),
        "choice": ("choices",),
        "multi": ("choices",),
        "order": ("items",),
        "debug": (),
        "code": ("code",),
        "free": ("keypoints", "interview"),
        "design": ("keypoints", "interview"),
    }[q.kind]
    found += [f"kind {q.kind} needs {name}" for name in needs if not getattr(q, name)]
    if q.run_first and q.experiment is None:
        found.append("run_first needs an experiment")
    if q.kind == "debug" and not (q.answers or q.choices):
        found.append("kind debug needs answers or choices")
    if q.choices and len(q.choices) < 3:
        found.append("at least three choices, or it is a coin flip")
    typed = [choice for choice in q.choices if choice.right is True]
    computed = [choice for choice in q.choices if isinstance(choice.right, str)]
    if q.choices and q.kind != "multi" and not computed and len(typed) != 1:
        found.append(f"exactly one choice is right, not {len(typed)}")
    found += [
        f"an answer may not be called {a.id}: replies to options are"
        for a in q.answers
        if a.id in RESERVED and q.kind != a.id
    ]
    ids = [answer.id for answer in q.answers] or [choice.id for choice in q.choices]
    for group in (q.answers, q.choices, q.items, q.mistakes, q.keypoints):
        names = [entry.id for entry in group]
        found += [f"{name!r} appears twice" for name in names if names.count(name) > 1]
    found += [
        f"mistake {m.id}: there is no answer {m.when.answer!r}"
        for m in q.mistakes
        if m.when.answer not in (*ids, "choice", "order")
    ]
    found += [f"oracle for {name!r}, which is no answer" for name in q.oracle if name not in ids]
    return found

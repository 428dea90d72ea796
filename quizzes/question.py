"""Schema of a question file `bank/<topic>/<name>.yaml`: strict, without code.

    header      id, title, kind, stage, roles, difficulty, minutes, covers, sources
    draw        params, require                    new numbers for every seed
    ask         prompt, choices | items | answers
    decide      experiment, answers.expect, oracle the engine decides; an independent oracle must agree
    teach       hints, mistakes, keypoints, followups, explain, interview

Text fields are Jinja templates over the params; `explain`, `say` and `followups` also see `result` and `expected`.
Values that start with = are expressions (`expressions.py`).
"""

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from quizzes.topics import TOPICS

RESERVED = ("choice", "order")
"""Reply keys for options; an answer must not use these ids."""
_NEEDS = {
    "predict": ("experiment", "answers"),
    "numeric": ("answers",),
    **dict.fromkeys(("choice", "multi"), ("choices",)),
    "order": ("items",),
    "code": ("code",),
    **dict.fromkeys(("free", "design"), ("keypoints", "interview")),
}
"""Kind -> fields that it needs."""


class Strict(BaseModel):
    """Base model without unknown fields or conversions: YAML's `no` is not a string, 12:30 is not a number."""

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
    """Number of values, for `ints`."""
    lo: int
    hi: int
    step: int = 1


class FloatRange(Strict):
    lo: float
    hi: float
    digits: int = 2


class Param(Strict):
    """Distribution of a number of the question: exactly one of these fields."""

    const: Any = None
    choice: list[Any] | None = None
    int_: Annotated[IntRange | None, Field(alias="int")] = None
    ints: IntRange | None = None
    float_: Annotated[FloatRange | None, Field(alias="float")] = None
    expr: str | None = None
    """An expression over the params above it: "=a * 2"."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if len(self.model_fields_set) != 1:
            raise ValueError("a param has exactly one of const, choice, int, ints, float, expr")
        return self


class Band(Strict):
    """Partial points for an answer within `rel` of the truth or within a factor."""

    rel: float | None = None
    factor: float | None = None
    points: float


class Check(Strict):
    """Tolerance; one of these fields. Default: exact for whole numbers, words and lists, rel 0.02 for floats."""

    exact: bool | None = None
    abs: float | None = None
    rel: float | None = None
    factor: float | None = None
    sign: bool | None = None
    bands: list[Band] | None = None


class Answer(Strict):
    """One value that the learner types."""

    id: Id
    ask: str = ""
    """Words before the prompt; the id if empty."""
    type: AnswerType
    unit: str | None = None
    """Unit of the expected value: steps, tokens, GiB, ms, % ... Learners may use another unit of the same kind."""
    expect: Any = None
    """An =expression over params and result, or a value if it cannot be computed."""
    accept: list[str] = []
    """Other accepted spellings, for words."""
    check: Check = Check()
    points: float = 1
    interval: float | None = None
    """Also ask for an interval that contains the truth with this probability, such as 0.8."""


class Choice(Strict):
    """An option. `right` is a literal only if no experiment can decide it."""

    id: Id
    text: str
    right: bool | str = False
    """True, or an =expression over params and result."""
    why: str = ""
    """Reason why it is right or wrong, shown after the answer."""


class Item(Strict):
    """One of the items to put in order."""

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
    """Signature of a wrong answer: the answer equals this value, or this option was chosen."""

    answer: Id
    equals: Any


class Mistake(Strict):
    """A common wrong answer and the misconception behind it."""

    id: Id
    when: When
    say: str


class KeyPoint(Strict):
    """A point that a good free-text answer makes."""

    id: Id
    say: str
    weight: float = 1
    must: bool = False
    probes: list[str] = []
    """Ids of machine-graded questions that test this point."""
    good: Annotated[list[str], Field(min_length=1)]
    """Phrasings of the point; canaries for a judge."""
    bad: Annotated[list[str], Field(min_length=1)]
    """Phrasings of the opposite; canaries for a judge."""


class FollowUp(Strict):
    """A follow-up question of the interviewer. It leads to a run or to another question."""

    if_: Annotated[str, Field(alias="if")] = "true"
    """true, correct, wrong, or an expression over answers and confidence."""
    ask: str
    experiment: Run | None = None
    pass_: Annotated[str | None, Field(alias="pass")] = None
    """An expression over params, reply and result: true if the challenge is met."""
    witness: dict[str, Any] | None = None
    """Arguments that meet the challenge; lint checks that they do."""
    goto: str | None = None
    """Id of a machine-graded question on the same point, offered after the spoken answer."""


class Interview(Strict):
    """A model answer to say aloud."""

    probing: str
    """Purpose of the question for the interviewer."""
    short: str
    """Answer in 30 seconds."""
    long: str
    """Answer in 2 minutes."""
    deep: str = ""
    """More depth, if they ask for it."""
    mistakes: list[str] = []
    """Common weak answers."""
    rubric: dict[Literal["1", "2", "3", "4", "5"], str] = {}


class Code(Strict):
    """A program to repair: folder `quizzes/autopsies/<folder>/` with given.py, checks.py, solution.py."""

    folder: Id
    seconds: float = 20.0
    megabytes: int = 1500


class Question(Strict):
    """A question whose numbers depend on a seed."""

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
    """Contradictions between source documents that it decides."""
    claims: list[str] = []
    tags: list[str] = []
    sources: Annotated[list[Source], Field(min_length=1)]
    params: dict[str, Param] = {}
    require: list[str] = []
    """Expressions that must hold; params are redrawn at most 100 times."""
    prompt: str
    exhibit: str = ""
    """Code, a log or a table, shown verbatim after the prompt."""
    experiment: Run | None = None
    run_first: bool = False
    """Run the experiment before asking; the exhibit is a template over its result, such as a dashboard."""
    choices: list[Choice] = []
    shuffle: bool = True
    items: list[Item] = []
    """For order: the expected order is `answers[0].expect` or, without it, the order of this list."""
    answers: list[Answer] = []
    code: Code | None = None
    oracle: dict[str, str] = {}
    """Answer id -> an =expression over params, or `module.function` in quizzes/oracles, called with the params that it
    names. Independent of the experiment: lint compares the two over 40 seeds."""
    confidence: bool = True
    hints: list[Hint] = []
    mistakes: list[Mistake] = []
    holds: list[str] = []
    """Statements of hints and explanation, as expressions over params, result and expected; lint checks every seed."""
    keypoints: list[KeyPoint] = []
    followups: list[FollowUp] = []
    explain: str
    interview: Interview | None = None
    status: Literal["draft", "stable", "retired"] = "stable"
    revision: Annotated[int, Field(ge=1)] = 1
    """Increase it when the meaning of answers changes: statistics restart, review cards stay."""

    @property
    def topic(self) -> str:
        return self.id.split(".")[0]

    @property
    def is_machine_graded(self) -> bool:
        """Whether counters, formulas, checks or probes decide the answer."""
        return self.kind not in ("free", "design") or any(point.probes for point in self.keypoints)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        for problem in _problems(self):
            raise ValueError(problem)
        return self


def _problems(q: Question) -> Iterator[str]:
    """Yield problems that the types cannot express."""
    if q.topic not in TOPICS:
        yield f"topic {q.topic!r} is unknown; known: {', '.join(TOPICS)}"
    for name in _NEEDS.get(q.kind, ()):
        if not getattr(q, name):
            yield f"kind {q.kind} needs {name}"
    if q.run_first and q.experiment is None:
        yield "run_first needs an experiment"
    if q.kind == "debug" and not (q.answers or q.choices):
        yield "kind debug needs answers or choices"
    if q.choices and len(q.choices) < 3:
        yield "needs at least three choices"
    typed = sum(choice.right is True for choice in q.choices)
    computed = any(isinstance(choice.right, str) for choice in q.choices)
    if q.choices and q.kind != "multi" and not computed and typed != 1:
        yield f"needs exactly one right choice, not {typed}"
    for answer in q.answers:
        if answer.id in RESERVED and q.kind != answer.id:
            yield f"an answer cannot have the id {answer.id}, which is reserved for options"
    for group in (q.answers, q.choices, q.items, q.mistakes, q.keypoints):
        for name, count in Counter(entry.id for entry in group).items():
            if count > 1:
                yield f"{name!r} appears twice"
    ids = [answer.id for answer in q.answers] or [choice.id for choice in q.choices]
    for mistake in q.mistakes:
        if mistake.when.answer not in (*ids, *RESERVED):
            yield f"mistake {mistake.id}: there is no answer {mistake.when.answer!r}"
    yield from (f"oracle for {name!r}, which is not an answer" for name in q.oracle if name not in ids)

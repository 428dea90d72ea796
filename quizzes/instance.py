"""A question drawn with a seed: its numbers, texts and right answers."""

from dataclasses import dataclass, field
from functools import cache, lru_cache
from random import Random
from typing import Any

from jinja2 import StrictUndefined, Template
from jinja2.sandbox import SandboxedEnvironment

from prep_common.text import counted, gib
from quizzes.expressions import dotted, evaluate, is_expression, resolve
from quizzes.question import Choice, Param, Question

MAX_DRAWS = 100


class QuestionError(ValueError):
    """Raised for a question that cannot be drawn or rendered: an error in its file, named by id."""


@cache
def _templates() -> SandboxedEnvironment:
    environment = SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=False)
    environment.filters["commas"] = lambda value: f"{value:,}"
    environment.filters["gib"] = lambda value: gib(value, 2)
    environment.filters["mib"] = lambda value: f"{value / 2**20:,.1f} MiB"
    environment.filters["pct"] = lambda value: f"{100 * value:.1f} %"
    environment.filters["plural"] = counted
    return environment


@lru_cache(maxsize=256)
def _template(text: str) -> Template:
    """Return a compiled template: checks render the texts of one question for many seeds."""
    return _templates().from_string(text)


def render_text(text: str, names: dict[str, Any]) -> str:
    """Render a Jinja template. Keys of mappings can be read with a dot. Raises jinja2.TemplateError, or what the
    template's arithmetic raises."""
    shown = {name: dotted(value) for name, value in names.items()}
    return _template(text).render(shown).strip("\n").rstrip()


@dataclass(frozen=True)
class Instance:
    """A question with the numbers of one seed."""

    question: Question
    seed: int
    params: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.question.id

    def render(self, text: str, **more: Any) -> str:
        """Render a text field with this instance's numbers. `more`: result, expected ... if the field may use them."""
        try:
            return render_text(text, {**self.params, **more})
        except Exception as error:
            raise QuestionError(f"{self.id} (seed {self.seed}): {error} in {text.strip()[:80]!r}") from error

    @property
    def prompt(self) -> str:
        return self.render(self.question.prompt)

    def asked(self, key: str) -> str:
        """Return the words that ask for one reply, with its unit."""
        if key == "choice":
            return "number of the option" if self.question.kind != "multi" else "numbers of all that hold"
        if key == "order":
            return "numbers in order"
        [answer] = [answer for answer in self.question.answers if answer.id == key]
        name = answer.ask and self.render(answer.ask) or answer.id.replace("_", " ")
        kinds = {"bool": "yes or no", "ints": "numbers", "words": "words, separated by commas"}
        unit = answer.unit or kinds.get(answer.type, "")
        return name if not unit or name.endswith(unit) else f"{name} ({unit})"

    def run_args(self) -> dict[str, Any]:
        """Return the arguments of its experiment for this seed."""
        run = self.question.experiment
        return {} if run is None else resolve(run.args, self.params)

    def choices(self) -> list[Choice]:
        """Return the choices in the order of this seed."""
        shown = list(self.question.choices)
        if self.question.shuffle:
            Random(f"{self.id}:{self.seed}:order").shuffle(shown)
        return shown

    def items(self) -> list[str]:
        """Return the ids of the items in shuffled order, never as in the file, which is often the right order."""
        written = [item.id for item in self.question.items]
        shown = list(written)
        Random(f"{self.id}:{self.seed}:order").shuffle(shown)
        return shown if shown != written else [*shown[1:], *shown[:1]]

    def expected(self, result: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the right answers: answer id -> value, `{"choice": [ids]}` for choices, `{"order": [ids]}` for order.

        result: result of the experiment; needed if expressions use it.
        """
        names = self.names(result)
        right: dict[str, Any] = {answer.id: resolve(answer.expect, names) for answer in self.question.answers}
        if self.question.choices:
            right["choice"] = [choice.id for choice in self.question.choices if self._holds(choice, names)]
        if self.question.kind == "order" and not self.question.answers:
            right["order"] = [item.id for item in self.question.items]
        return right

    def _holds(self, choice: Choice, names: dict[str, Any]) -> bool:
        right = choice.right
        return bool(evaluate(str(right), names)) if is_expression(right) else right is True

    def names(self, result: dict[str, Any] | None) -> dict[str, Any]:
        """Return the names that expressions may use."""
        return self.params if result is None else {**self.params, "result": result}


def draw(question: Question, seed: int) -> Instance:
    """Draw the instance of a seed, the same on every machine. Raises QuestionError if `require` never holds."""
    label = f"{question.id}:{question.revision}:{seed}"
    return Instance(question, seed, draw_params(label, question.params, question.require))


def draw_params(label: str, params: dict[str, Param], require: list[str]) -> dict[str, Any]:
    """Draw numbers that fulfil `require`; the label seeds them. Raises QuestionError if there are none."""
    for attempt in range(MAX_DRAWS):
        rng = Random(f"{label}:{attempt}")
        drawn: dict[str, Any] = {}
        for name, param in params.items():
            drawn[name] = _draw(param, rng, drawn)
        if all(evaluate(condition, drawn) for condition in require):
            return drawn
    raise QuestionError(f"{label}: `require` held in none of {MAX_DRAWS} draws")


def _draw(param: Param, rng: Random, params: dict[str, Any]) -> Any:
    if param.choice is not None:
        return rng.choice(param.choice)
    if param.int_ is not None:
        return rng.randrange(param.int_.lo, param.int_.hi + 1, param.int_.step)
    if param.ints is not None:
        span = param.ints
        return [rng.randrange(span.lo, span.hi + 1, span.step) for _ in range(span.n or 1)]
    if param.float_ is not None:
        return round(rng.uniform(param.float_.lo, param.float_.hi), param.float_.digits)
    if param.expr is not None:
        return evaluate(param.expr, params)
    return param.const

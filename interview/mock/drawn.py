"""A scenario with the numbers of one session: texts, graded questions, clarifications."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from interview.mock.scenario import Clarification, Scenario, Step
from quizzes.expressions import evaluate, resolve
from quizzes.instance import Instance, draw_params, render_text
from quizzes.question import KeyPoint, Question

Option = TypeVar("Option")


@dataclass
class Drawn:
    """A scenario, its numbers, and what the candidate has chosen so far."""

    scenario: Scenario
    seed: int
    params: dict[str, Any]
    said: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Step -> pick -> value. Before a pick is made it has its start value."""

    @property
    def names(self) -> dict[str, Any]:
        return {**self.params, "said": self.said}

    def text(self, template: str, **more: Any) -> str:
        return render_text(template, {**self.names, **more})

    def value(self, expression: Any, **more: Any) -> Any:
        """Return what an =expression, or a mapping of them, comes to."""
        return resolve(expression, {**self.names, **more})

    def holds(self, expression: str, **more: Any) -> bool:
        return bool(evaluate(expression, {**self.names, **more}))

    def wording(self, step: Step) -> str:
        """Return the wording of this session."""
        rng = Random(f"{self.scenario.id}:{step.id}:{self.seed}:wording")
        return self.text(rng.choice(step.say))

    def shuffled(self, step: Step, options: Sequence[Option]) -> list[Option]:
        """Return options of a step in the order of this session: in the file the right one is often the first."""
        shown = list(options)
        Random(f"{self.scenario.id}:{step.id}:{self.seed}:{len(shown)}").shuffle(shown)
        return shown

    def question(self, step: Step) -> Instance:
        """Return a step with answers or choices as a question of the bank, to be graded like one."""
        kind = "choice" if step.choices else "predict" if step.experiment else "numeric"
        question = Question(
            schema_=1,
            id=f"{self.scenario.topics[0]}.{self.scenario.id.replace('.', '_')}_{step.id}",
            title=self.scenario.title,
            kind=kind,  # type: ignore[arg-type]
            stage="technical",
            roles=["inference"],
            difficulty=step.difficulty,
            minutes=step.minutes,
            sources=self.scenario.sources,
            prompt=step.say[0],
            experiment=step.experiment,
            choices=step.choices,
            answers=step.answers,
            mistakes=step.mistakes,
            explain=step.explain or ".",
        )
        return Instance(question, self.seed, self.names)

    def key_points(self, step: Step) -> list[KeyPoint]:
        """Return a step's key points with this session's numbers."""
        return [
            point.model_copy(
                update={
                    "say": self.text(point.say),
                    "good": [self.text(phrasing) for phrasing in point.good],
                    "bad": [self.text(phrasing) for phrasing in point.bad],
                }
            )
            for point in step.keypoints
        ]

    def clarify(self, question: str) -> Clarification | None:
        """Return the fact that a clarifying question asks for; None if it asks for none of them."""
        heard = " ".join(re.findall(r"[\w.%/-]+", question.lower()))
        best, most = None, 0
        for clarification in self.scenario.clarifications:
            length = max((len(word) for word in clarification.words if _has(heard, word)), default=0)
            if length > most:  # the longest phrase is the most specific
                best, most = clarification, length
        return best


def draw_scenario(scenario: Scenario, seed: int) -> Drawn:
    """Draw the numbers of a session. Raises QuestionError if `require` never holds."""
    params = draw_params(f"{scenario.id}:{seed}", scenario.params, scenario.require)
    said = {step.id: {pick.id: pick.start for pick in step.picks} for step in scenario.steps if step.picks}
    return Drawn(scenario, seed, params, said)


def _has(text: str, phrase: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(phrase.lower())}(s|es)?(?!\w)", text) is not None

"""The bank's questions inside a notebook: predict, commit, run, explain, as in `prep quiz`."""

from __future__ import annotations

import html
import random
import time
from typing import Any

from lessons.course.lesson_files import Lesson
from quizzes.experiments.registry import Inconclusive, NeedsHardware
from quizzes.experiments.runner import RunFailed, Runner
from quizzes.grading import Graded, ParseError, check_reply, grade, reply_keys
from quizzes.instance import Instance, draw
from quizzes.learning.review import rate
from quizzes.question_bank import load_bank
from quizzes.state import Attempt, Prediction, State, StateError

GRADED = ("predict", "numeric", "choice", "multi", "order")
"""Kinds that need no prose and no editor."""
MAX_SHOWN = 3


class InlineQuestion:
    """One question. `answer(replies)` commits, runs, keeps and returns the verdict in Markdown."""

    def __init__(self, question_id: str, seed: int | None = None) -> None:
        seed = random.SystemRandom().randrange(1 << 30) if seed is None else seed
        self.instance: Instance = draw(load_bank().question(question_id), seed)
        self.keys = list(reply_keys(self.instance))
        self._began = time.monotonic()

    @property
    def prompt(self) -> str:
        """The question in Markdown, with numbered options."""
        options = [
            f"{number}. {self.instance.render(choice.text)}" for number, choice in _numbered(self.instance)
        ]
        return "\n\n".join(
            ["**" + self.instance.question.title + "**", self.instance.prompt, "\n".join(options)]
        )

    @property
    def text(self) -> str:
        """The question and what it asks for, without widgets."""
        return "\n\n".join([self.prompt, "\n".join(f"- {self.instance.asked(key)}" for key in self.keys)])

    def answer(self, replies: dict[str, str], confidence: int | None = None) -> str:
        """Raises ParseError if a reply cannot be read; nothing is committed then.

        If the learner's state is unusable, the verdict says so, and that the answer is not saved.
        """
        for key in self.keys:
            check_reply(self.instance, key, replies.get(key, ""))
        try:
            with State.open() as state:
                return self._answer(state, replies, confidence)
        except StateError as error:
            with State.in_memory() as state:
                verdict = self._answer(state, replies, confidence)
            return f"{verdict}\n\n**This answer is not saved**: {error}. {error.next_step}"

    def _answer(self, state: State, replies: dict[str, str], confidence: int | None) -> str:
        """Commit, run, keep. Return the verdict."""
        question = self.instance.question
        session = state.begin_session("lesson", {"question": question.id})
        prediction = state.add(
            Prediction(session.id, question.id, question.revision, self.instance.seed, replies, confidence)
        )
        try:
            result = self._run()
        except (Inconclusive, NeedsHardware, RunFailed) as error:
            return f"not scored: {error}"
        graded = grade(self.instance, replies, result)
        state.add(self._attempt(session.id, prediction.id, replies, confidence, graded))
        state.end_session(session.id)
        expected = self.instance.expected(result)
        explanation = self.instance.render(question.explain, result=result, expected=expected)
        return "\n\n".join([_table(graded), explanation])

    def _run(self) -> dict[str, Any] | None:
        run = self.instance.question.experiment
        if run is None:
            return None
        with Runner() as runner:
            return runner.run(run.run, self.instance.run_args()).result

    def _attempt(
        self,
        session_id: str,
        prediction_id: str,
        replies: dict[str, str],
        confidence: int | None,
        graded: Graded,
    ) -> Attempt:
        question, seconds = self.instance.question, time.monotonic() - self._began
        share = graded.points / graded.max_points if graded.max_points else 0.0
        rating = rate(
            correct=graded.all_right,
            fraction=share,
            hints=0,
            seconds=seconds,
            minutes=question.minutes,
            confidence=confidence,
        )
        return Attempt(
            session_id,
            question.id,
            question.revision,
            self.instance.seed,
            replies,
            graded.points,
            graded.max_points,
            graded.all_right,
            graded.grader,
            elapsed_ms=round(1000 * seconds),
            confidence=confidence,
            mistake_id=graded.mistakes[0] if graded.mistakes else None,
            rating=rating,
            prediction_id=prediction_id,
        )

    def widget(self) -> Any:
        """Return the question with an input per part and a button."""
        import ipywidgets

        inputs = {key: ipywidgets.Text() for key in self.keys}
        parts = [
            ipywidgets.VBox([ipywidgets.HTML(html.escape(self.instance.asked(key))), field])
            for key, field in inputs.items()
        ]
        sure = ipywidgets.BoundedIntText(value=50, min=1, max=99, description="sure, %")
        button = ipywidgets.Button(description="Commit and run")
        area = ipywidgets.HTML()

        def commit(_: Any) -> None:
            try:
                text = self.answer({key: each.value for key, each in inputs.items()}, sure.value)
                button.disabled = True
            except ParseError as error:
                text = str(error)
            area.value = f"<div role='status'>{_to_html(text)}</div>"

        button.on_click(commit)
        shown = ipywidgets.HTML(_to_html(self.prompt))
        return ipywidgets.VBox([shown, *parts, sure, button, area])


def unlocked(lesson: Lesson) -> list[str]:
    """Return the ids of questions that a notebook can ask."""
    bank = load_bank()
    return [name for name in lesson.unlocks if name in bank and bank.question(name).kind in GRADED][
        :MAX_SHOWN
    ]


def _numbered(instance: Instance) -> list[tuple[int, Any]]:
    question = instance.question
    if question.kind == "order" and not question.answers:
        by_id = {item.id: item for item in question.items}
        return list(enumerate((by_id[name] for name in instance.items()), 1))
    return list(enumerate(instance.choices(), 1)) if question.choices else []


def _to_html(text: str) -> str:
    from mistune import create_markdown

    return str(create_markdown(plugins=["table"])(text))


def _table(graded: Graded) -> str:
    rows = ["| | you | right | |", "|---|---|---|---|"]
    for part in graded.parts:
        rows.append(f"| {part.id} | {part.given} | {part.expected} | {'pass' if part.ok else 'miss'} |")
    return "\n".join(rows)

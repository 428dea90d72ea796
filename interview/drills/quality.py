"""Questions whose right answers are known: draw them for a load, and compute the share that was answered right.

They come from the corpus of the model `shop`, about shops that it has not seen, so a wrong answer is the server's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from random import Random
from statistics import fmean

from engine.server.load_client import Due, Sent
from engine.zoo.corpus import Case, draw_cases
from interview.drills.figures import Figures

KINDS = ("author", "price", "volumes", "genre")
"""Kinds of questions: facts of a title, which the model answers with 98 % right."""
CASES = 800
USER = "<|im_start|>user"


@dataclass(frozen=True, slots=True)
class Question(Due):
    """A request, with its right answer if that is known."""

    answer: str = ""

    @property
    def text(self) -> str:
        return str(self.body["prompt"])


def question(titles: int, index: int) -> Case:
    """Return a first question in English about a shop with so many titles; the same index gives the same one."""
    return Random(f"question-{titles}-{index}").choice(_cases(titles))


@cache
def _cases(titles: int) -> list[Case]:
    drawn = draw_cases(CASES, rows=(titles, titles), kinds=KINDS)
    return [case for case in drawn if case.language == "en" and case.prompt.count(USER) == 1]


def is_right(sent: Sent, asked: Question) -> bool:
    """Return whether a whole answer has every character of the right one."""
    return "".join(choice.get("text", "") for choice in sent.choices).strip() == asked.answer.strip()


def marks(due: list[Due], sent: list[Sent]) -> dict[tuple[str, float], bool]:
    """Return whether the last answer to each question is right, by the group and the time of the question."""
    asked = {(entry.name, entry.at): entry for entry in due if isinstance(entry, Question) and entry.answer}
    return {
        key: is_right(answer, asked[key]) for answer in sent if (key := (answer.name, answer.due)) in asked
    }


def quality_figures(due: list[Due], sent: list[Sent]) -> Figures:
    """Return the share of right answers among the shorter and the longer half of the questions; 0 without any."""
    marked = marks(due, sent)
    asked = [entry for entry in due if isinstance(entry, Question) and (entry.name, entry.at) in marked]
    asked.sort(key=lambda entry: len(entry.text))
    middle = len(asked) // 2
    halves = {"right_short": asked[:middle], "right_long": asked[middle:]}
    return {
        name: fmean(marked[entry.name, entry.at] for entry in half) if half else 0.0
        for name, half in halves.items()
    }

"""Follow-ups take up the candidate's own words: a quotation before the question, and no question about a number that
the answer has already."""

from __future__ import annotations

import re

from interview.mock.drawn import Drawn
from interview.mock.scenario import Step
from interview.mock.substance import SHARED
from interview.mock.talk import Asked
from quizzes.free_text.sentences import closest, overlap, sentences, stems
from quizzes.grading import Graded, ParseError, grade

LONGEST = 140
"""Characters of a quotation."""
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")
_FIGURE = re.compile(r"(?<![\w.])(\d[\d,]*(?:\.\d+)?)\s*([^\s\d.,;:!?()]+)?")


def quotation(drawn: Drawn, step: Step, asked: Asked, follow_up: Step, reason: str) -> str:
    """Return the words of an answer that a follow-up takes up, as a sentence; "" for an answer without words."""
    text = asked.replies.get("text", "")
    if not text:
        given = asked.rows[0][1] if asked.rows else ""
        return f"You said: {_short(given)}." if given else ""
    kind, _, name = reason.partition(":")
    quoted = f'You said: "{_short(_nearest(drawn, step, text, follow_up, name))}"'
    return f"{quoted}, without a number." if kind == "no_number" else f"{quoted}."


def _nearest(drawn: Drawn, step: Step, text: str, follow_up: Step, name: str) -> str:
    """Return the sentence nearest to a key point, else to the question."""
    for point in drawn.key_points(step):
        if point.id == name and (near := closest(point, text)) is not None:
            return near.sentence
    question = stems(drawn.wording(follow_up))
    return max(sentences(text) or [text], key=lambda sentence: overlap(stems(sentence), question))


def _short(text: str) -> str:
    words = " ".join(text.replace("`", "'").split()).rstrip(".")
    return literal(words if len(words) <= LONGEST else f"{words[:LONGEST].rsplit(' ', 1)[0]} …")


def literal(text: str) -> str:
    """Return a candidate's words so that none of them is read as Markdown, and no control character is left."""
    plain = "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text)
    return _SPECIAL.sub(r"\\\1", plain)


def said_already(drawn: Drawn, asked: Asked, follow_up: Step) -> Graded | None:
    """Return the grade of a follow-up that asks for one number which the answer gives, with its unit, in a sentence
    about the same thing; None if it must be asked."""
    if follow_up.choices or follow_up.experiment or follow_up.picks or len(follow_up.answers) != 1:
        return None
    answer, instance = follow_up.answers[0], drawn.question(follow_up)
    if answer.type not in ("int", "float") or not answer.unit:
        return None
    asks = stems(f"{drawn.wording(follow_up)} {answer.ask or ''}")
    for sentence in sentences(asked.replies.get("text", "")):
        if len(stems(sentence) & asks) < SHARED:
            continue
        for number, unit in _FIGURE.findall(sentence):
            if unit.rstrip("s") != answer.unit.rstrip("s"):
                continue
            try:
                graded = grade(instance, {answer.id: f"{number} {answer.unit}"})
            except ParseError:
                continue
            if graded.all_right:
                return graded
    return None

"""Follow-ups take up the candidate's own words: a quotation before the question, and no question about a number that
the answer has already."""

from __future__ import annotations

import re
from math import isclose

from interview.mock.drawn import Drawn
from interview.mock.scenario import Step
from interview.mock.stance import stances
from interview.mock.substance import SHARED
from interview.mock.talk import Asked
from quizzes.free_text.sentences import closest, overlap, sentences, stems
from quizzes.grading import Graded, ParseError, grade

OPENING = "You said: "
GIVEN = 0.05
"""Relative distance up to which a figure of the answer is the number that a follow-up asks for."""
LONGEST = 140
"""Characters of a quotation."""
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")
_FIGURE = re.compile(r"(?<![\w.])(\d+(?:,\d{3})*(?:\.\d+)?)\s*([^\s\d.,;:!?()]+)?")
_LIST = re.compile(r"[\s,;/~–-]*(?:(?:or|to|and)\b[\s~]*)?")
"""Text between two figures of a list or a range."""
_OPEN = re.compile(
    r"\b(?:no|not|never|neither|nor|cannot|hardly|instead|rather|maybe|perhaps|might|wrong)\b|n['’]t\b|\?"
    r"|\b(?:fewer|less|more) than\b|\bat (?:least|most)\b|\bup to\b|\b(?:under|over|below|above|beyond) [\d~]",
    re.IGNORECASE,
)
"""Words that deny a number, or leave it open."""


def quotation(drawn: Drawn, step: Step, asked: Asked, follow_up: Step, reason: str) -> str:
    """Return the words of an answer that a follow-up takes up, as a sentence; "" for an answer without words,
    and for one that gives the follow-up's number in every sentence."""
    text = asked.replies.get("text", "")
    if not text:
        given = asked.rows[0][1] if asked.rows else ""
        return f"{OPENING}{_short(given)}." if given else ""
    kind, _, name = reason.partition(":")
    near = _nearest(drawn, step, _without_answer(drawn, text, follow_up), follow_up, name)
    if not near:
        return ""
    words = f'{OPENING}"{_short(near)}"'
    return f"{words}, without a number." if kind == "no_number" else f"{words}."


def quoted(say: str) -> str:
    """Return the quotation that begins what the interviewer says, with the empty line after it; "" if there is none."""
    words, end, _ = say.partition("\n\n")
    return f"{words}{end}" if words.startswith(OPENING) else ""


def _nearest(drawn: Drawn, step: Step, text: str, follow_up: Step, name: str) -> str:
    """Return the sentence nearest to a key point, else to the question."""
    for point in drawn.key_points(step):
        if point.id == name and (near := closest(point, text)) is not None:
            return near.sentence
    question = stems(drawn.wording(follow_up))
    return max(sentences(text) or [text], key=lambda sentence: overlap(stems(sentence), question))


def _without_answer(drawn: Drawn, text: str, follow_up: Step) -> str:
    """Return a text without the sentences that have a number which the follow-up asks for, in any power of 1,000."""
    if follow_up.choices or follow_up.experiment or follow_up.picks:
        return text
    asks, instance = (
        [answer for answer in follow_up.answers if answer.type in ("int", "float")],
        drawn.question(follow_up),
    )
    expected = instance.expected(None)

    def gives(figure: str) -> bool:
        said = float(figure.replace(",", ""))
        return any(
            isclose(said * 1000.0**power, float(expected[ask.id]), rel_tol=GIVEN)
            for ask in asks
            for power in (-1, 0, 1)
        )

    kept = [
        sentence for sentence in sentences(text) if not any(gives(figure) for figure, _ in _figures(sentence))
    ]
    return "\n".join(kept)


def _short(text: str) -> str:
    words = " ".join(text.replace("`", "'").split()).rstrip(".")
    return literal(words if len(words) <= LONGEST else f"{words[:LONGEST].rsplit(' ', 1)[0]} …")


def literal(text: str) -> str:
    """Return a candidate's words so that none of them is read as Markdown, and no control character is left."""
    plain = "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text)
    return _SPECIAL.sub(r"\\\1", plain)


def said_already(drawn: Drawn, asked: Asked, follow_up: Step) -> Graded | None:
    """Return the grade of a follow-up that asks for one number which the answer gives, with its unit, in a sentence
    about the same thing; None if it must be asked, as after a wrong figure with that unit or a denied one."""
    if follow_up.choices or follow_up.experiment or follow_up.picks or len(follow_up.answers) != 1:
        return None
    answer, instance = follow_up.answers[0], drawn.question(follow_up)
    if answer.type not in ("int", "float") or not answer.unit:
        return None
    asks = stems(f"{drawn.wording(follow_up)} {answer.ask or ''}")
    taken = None
    for sentence, stance in stances(asked.replies.get("text", "").replace(";", ",")):
        is_about = len(stems(sentence) & asks) >= SHARED
        figures = _figures(sentence)
        said = {number for number, unit in figures if is_unit(unit, answer.unit)}
        is_open = stance != "affirmed" or bool(_OPEN.search(sentence))
        if said and (is_open or any(not unit and number not in said for number, unit in figures)):
            return None
        for number, unit in figures:
            if not is_unit(unit, answer.unit):
                continue
            try:
                graded = grade(instance, {answer.id: f"{number} {answer.unit}"})
            except ParseError:
                return None
            if not graded.all_right:
                return None  # one of several figures: the candidate must decide
            taken = graded if is_about else taken
    return taken


def _figures(sentence: str) -> list[tuple[str, str]]:
    """Return (number, unit) of each figure. In "30, 50 or 90 ms" all have the unit of the last."""
    figures: list[tuple[str, str]] = []
    unit, begins = "", len(sentence)
    for figure in reversed(list(_FIGURE.finditer(sentence))):
        if not _LIST.fullmatch(sentence[figure.end(1) : begins]):
            unit = figure[2] or ""
        begins = figure.start()
        figures.append((figure[1], unit))
    return figures[::-1]


def is_unit(said: str, unit: str) -> bool:
    """Return whether a unit was said, as a singular or a plural if it is a word."""
    return said == unit or len(min(said, unit, key=len)) > 2 and unit in (f"{said}s", said.removesuffix("s"))

"""Questions with known answers in a drill's load, and the share that was answered right."""

from __future__ import annotations

from engine.server.load_client import Sent
from interview.drills.drill import Group, Load
from interview.drills.quality import Question, marks, quality_figures
from interview.drills.work import requests

LOAD = Load(
    seconds=2,
    groups={
        "short": Group(rate=4, prompt="2", output="40", questions=True),
        "long": Group(rate=4, prompt="8", output="40", questions=True),
        "chat": Group(rate=4, prompt="20", output="4"),
    },
)


def answered(asked: list[Question], wrong: str) -> list[Sent]:
    """Return answers in two chunks; those of the group `wrong` lack a character."""
    found = []
    for each in asked:
        text = each.answer[1:] if each.name == wrong else each.answer
        sent = Sent(each.at, 1, name=each.name, choices=[{"text": text[:3]}, {"text": text[3:]}])
        found.append(sent)
    return found


def questions() -> list[Question]:
    return [request for request in requests(LOAD) if isinstance(request, Question) and request.answer]


def test_the_same_load_asks_the_same_questions_and_long_notes_make_long_prompts() -> None:
    asked = questions()
    assert [each.text for each in asked] == [question.text for question in questions()]
    assert {each.name for each in asked} == {"short", "long"}
    longest = {name: max(len(each.text) for each in asked if each.name == name) for name in ("short", "long")}
    assert longest["long"] > 1.5 * longest["short"]


def test_an_answer_is_right_with_every_character_and_the_halves_tell_apart_what_length_breaks() -> None:
    due, asked = requests(LOAD), questions()
    assert quality_figures(due, answered(asked, "")) == {"right_short": 1.0, "right_long": 1.0}
    figures = quality_figures(due, answered(asked, "long"))
    assert figures["right_long"] < 0.2 and figures["right_short"] > 0.8
    assert marks(due, []) == {} and quality_figures(due, []) == {"right_short": 0.0, "right_long": 0.0}

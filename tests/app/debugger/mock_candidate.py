"""A scripted candidate at the page Mock: fills in the page's own fields and presses its buttons."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from streamlit.testing.v1 import AppTest

from app.debugger.mock import held as interviews
from app.debugger.mock.held import Held
from interview.mock.candidates import Candidate
from interview.mock.turns import (
    Ask,
    Continue,
    Form,
    Hypothesis,
    Mark,
    Menu,
    Program,
    Prose,
    Rate,
    RunExperiment,
    Turn,
)
from tests.waiting import wait_until

SCRIPT = Path(__file__).resolve().parents[3] / "app" / "debugger" / "entry" / "workbench.py"


def held() -> Held:
    """Return the interview that this process holds."""
    return next(iter(interviews.HELD.held.values()))


def button(app: AppTest, label: str) -> Any:
    return next(each for each in app.button if each.label == label)


def until_asked(app: AppTest) -> None:
    """Wait for a run or the checks of a program, as the page does."""

    def is_asked() -> bool:
        if interviews.HELD.held and (isinstance(held().turn.want, RunExperiment) or held().job is not None):
            app.run()
            return False
        return True

    wait_until(is_asked)


def answer(app: AppTest, turn: Turn, reply: dict[str, Any]) -> None:
    """Give one reply through the page."""
    want, key = turn.want, f"mock {turn.id}"
    if isinstance(want, Continue):
        button(app, "Begin").click()
    elif isinstance(want, Prose) and "clarify" in reply:
        app.text_input(key=f"{key} question").set_value(reply["clarify"])
        button(app, "Ask").click()
    elif isinstance(want, Prose):
        app.text_area[0].set_value(reply["text"])
        button(app, "Answer").click()
    elif isinstance(want, Ask):
        _fill(app, key, reply)
        button(app, "Answer").click()
    elif isinstance(want, Form):
        for name, value in reply["values"].items():
            boxes = [*app.number_input, *app.selectbox]
            next(box for box in boxes if box.key == f"{key} {name}").set_value(value)
        button(app, "Commit" if want.can_try else "That is my choice").click()
    elif isinstance(want, Menu):
        app.button(key=f"{key} {reply['pick']}").click()
    elif isinstance(want, Hypothesis):
        app.radio(key=f"{key} cause").set_value(reply["cause"])
        app.multiselect(key=f"{key} evidence").set_value(reply["evidence"])
        app.slider(key=f"{key} sure").set_value(reply["confidence"])
        button(app, "That is my hypothesis").click()
    elif isinstance(want, Mark):
        app.button(key=f"{key} {reply['mark']}").click()
    elif isinstance(want, Rate):
        for axis, value in reply["ratings"].items():
            app.radio(key=f"{key} {axis}").set_value(value)
        button(app, "See the report").click()
    else:
        assert isinstance(want, Program)
        app.text_area[0].set_value(reply["source"])
        button(app, "Hand in").click()
    app.run()
    assert not app.exception and not app.error, [each.value for each in app.error]


def _fill(app: AppTest, key: str, reply: dict[str, Any]) -> None:
    for name, text in reply["replies"].items():
        boxes = {box.key: box for box in [*app.radio, *app.checkbox]}
        if name == "choice" and f"{key} choice" not in boxes:  # any number of them
            for number in filter(str.isdigit, text.split(", ")):
                boxes[f"{key} option {number}"].check()
        elif name == "choice":
            boxes[f"{key} choice"].set_value(int(text) - 1)
        elif f"{key} {name}" in boxes:
            boxes[f"{key} {name}"].set_value(text)
        elif name.endswith(".interval"):
            ends = text.split(" .. ")
            for end, words in zip(ends, ("from", "to"), strict=True):
                app.text_input(key=f"{key} {name.removesuffix('.interval')} {words}").set_value(end)
        else:
            app.text_input(key=f"{key} {name}").set_value(text)
    app.slider(key=f"{key} sure").set_value(reply["confidence"])


def walk(session_id: str) -> str:
    """Take a session that nothing else holds through the page to its end. Return the title of the last page."""
    app = AppTest.from_file(str(SCRIPT), default_timeout=60)
    app.query_params["interview"] = session_id
    go_to(app.run(), "never")
    return str(app.title[0].value)


def go_to(app: AppTest, end: str, persona: str = "excellent") -> list[tuple[Turn, dict[str, Any]]]:
    """Answer until the turn whose id ends so, or until the interview is over; return what was answered."""
    candidate: Candidate | None = None
    given = []
    until_asked(app)
    while interviews.HELD.held and not held().turn.id.endswith(end):
        candidate = candidate or Candidate(persona, held().session, held().runner)
        turn = held().turn
        reply, _ = candidate.reply(turn)
        answer(app, turn, reply)
        given.append((turn, reply))
        until_asked(app)
    return given

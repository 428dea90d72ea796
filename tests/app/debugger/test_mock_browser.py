"""A whole mock interview in a real browser, by keyboard alone; pictures of it."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from app.cli.app import SCRIPT, SETTINGS
from interview.drills.figures import FIGURES
from interview.mock.candidates import Candidate
from interview.mock.session import Session, sessions
from interview.mock.turns import (
    MARKS,
    Ask,
    Continue,
    Form,
    Hypothesis,
    Mark,
    Menu,
    Prose,
    Rate,
    RunExperiment,
    Turn,
)
from quizzes.experiments.runner import Runner
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
SAMPLE = ROOT / "tests" / "app" / "mock_scenarios"
AT_REST = "[data-test-script-state=notRunning]"


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a workbench with the sample scenario."""
    monkeypatch.setenv("PREP_HOME", str(tmp_path))
    monkeypatch.setenv("PREP_SCENARIOS", str(SAMPLE))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {**SETTINGS, "server.port": str(port)}
    flags = [part for name, value in settings.items() for part in (f"--{name}", value)]
    command = [sys.executable, "-m", "app.debugger.server", "run", str(SCRIPT), *flags]
    server = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
    wait_until(lambda: _answers(f"http://127.0.0.1:{port}/_stcore/health"))
    yield f"http://127.0.0.1:{port}/mock"
    server.terminate()
    server.wait(20)


def _answers(address: str) -> bool:
    try:
        urllib.request.urlopen(address, timeout=5).close()
        return True
    except OSError:
        return False


@pytest.fixture
def picture(tmp_path: Path) -> Callable[[Page, str], None]:
    """Take a picture; $PREP_PICTURES is a folder to keep them in."""
    folder = Path(os.environ.get("PREP_PICTURES") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    taken: list[str] = []

    def take(tab: Page, name: str) -> None:
        taken.append(name)
        tab.locator(AT_REST).wait_for()
        tab.screenshot(path=folder / f"{len(taken):02}-{name}.png", animations="disabled")

    return take


def shown(tab: Page) -> Session:
    """Wait until the page shows the present turn with the focus in its panel; return the session, to read."""

    def with_turn() -> Session | None:
        session = Session.replay(sessions()[0].spec.id) if sessions() else None
        is_busy = session is None or (
            session.turn is not None and isinstance(session.turn.want, RunExperiment)
        )
        return None if is_busy else session

    session = wait_until(with_turn)
    assert session is not None
    if session.turn is not None:
        tab.wait_for_function(
            "place => document.activeElement.closest(`.st-key-mock_answer_${place}`)",
            arg=len(session.past),
            timeout=1000 * LIMIT_S,
        )
        tab.locator(AT_REST).wait_for()
    return session


def type_reply(tab: Page, turn: Turn, reply: dict[str, Any]) -> None:
    """Give a reply with the keyboard; the focus is where the page put it."""
    press, want = tab.keyboard.press, turn.want
    if isinstance(want, Continue):
        press("Enter")
    elif isinstance(want, Prose):
        if "clarify" in reply:
            for key in ("Tab", "Tab", "Tab"):
                press(key)
        tab.keyboard.type(reply.get("clarify", reply.get("text", "")))
        press("Enter" if "clarify" in reply else "Control+Enter")
    elif isinstance(want, Ask):
        _type_values(tab, reply)
        press("Control+Enter")
    elif isinstance(want, Form):
        for pick in want.fields:
            if not pick.options:
                press("Control+a")
                tab.keyboard.type(str(reply["values"][pick.id]))
            press("Tab")
        press("Control+Shift+Enter" if want.can_try else "Control+Enter")
    elif isinstance(want, Menu):
        press(str(next(number for number, name in want.numbers.items() if name == reply["pick"])))
    elif isinstance(want, Hypothesis):
        press("Space")
        for _ in range([name for name, _ in want.causes].index(reply["cause"])):
            press("ArrowDown")
        press("Tab")
        for name in reply["evidence"]:
            tab.keyboard.type(FIGURES[name].says)
            tab.get_by_role("option", name=FIGURES[name].says).wait_for()
            press("Enter")
        press("Tab")  # to the button that clears the figures
        press("Tab")
        for _ in range(reply["confidence"] - 50):
            press("ArrowRight")
        press("Shift+Tab")  # the key below does not press the button with the focus
        press("Control+Enter")
    elif isinstance(want, Mark):
        press(str(MARKS.index(reply["mark"]) + 1))
    else:
        assert isinstance(want, Rate)
        for _ in want.axes:
            for key in ("ArrowRight", "ArrowRight", "ArrowRight", "Tab"):
                press(key)
        press("Control+Enter")


def _type_values(tab: Page, reply: dict[str, Any]) -> None:
    for name, text in reply["replies"].items():
        if name == "choice":
            for _ in range(int(text) - 1):
                tab.keyboard.press("ArrowDown")
            tab.keyboard.press("Space")
            tab.keyboard.press("Tab")
            continue
        for part in text.split(" .. "):
            tab.keyboard.type(part)
            tab.keyboard.press("Tab")
    for _ in range(reply["confidence"] - 50):
        tab.keyboard.press("ArrowRight")


def begin(tab: Page, url: str) -> None:
    """Begin an interview of 20 minutes from the form."""
    tab.goto(url)
    tab.get_by_role("button", name="Begin").wait_for()
    tab.locator(AT_REST).wait_for()
    tab.get_by_role("radiogroup", name="Minutes").get_by_role("radio", checked=True).focus()
    tab.keyboard.press("ArrowLeft")
    tab.get_by_role("button", name="Begin").focus()
    tab.keyboard.press("Enter")


def test_an_interview_by_keyboard(url: str, tab: Page, picture: Callable[[Page, str], None]) -> None:
    begin(tab, url)
    pictured: set[str] = set()
    with Runner() as runner:
        candidate: Candidate | None = None
        while (session := shown(tab)).turn is not None:
            candidate = candidate or Candidate("excellent", session, runner)
            candidate.session = session
            kind = type(session.turn.want).__name__.lower()
            if kind not in pictured or session.turn.chart:
                picture(tab, kind)
                pictured.add(kind)
            if kind == "menu" and "reloaded" not in pictured:
                pictured.add("reloaded")
                tab.reload()
                assert shown(tab).turn.id == session.turn.id
            type_reply(tab, session.turn, candidate.reply(session.turn)[0])
            _until_answered(session)
    tab.get_by_role("button", name="Download as HTML").wait_for()
    picture(tab, "report")
    replies = [line["reply"] for line in sessions()[0].lines]
    assert {"continue", "prose", "ask", "form", "menu", "hypothesis", "mark", "rate"} <= pictured
    assert next(reply for reply in replies if "ratings" in reply)["ratings"]["mechanism"] == 4


def _until_answered(before: Session) -> None:
    wait_until(lambda: len(sessions()[0].lines) > len(before.past))


def test_a_draft_survives_a_reload_and_the_clock_ticks_alone(url: str, tab: Page) -> None:
    begin(tab, url)
    with Runner() as runner:
        session = shown(tab)
        candidate = Candidate("excellent", session, runner)
        while not isinstance(session.turn.want, Prose):
            candidate.session = session
            type_reply(tab, session.turn, candidate.reply(session.turn)[0])
            _until_answered(session)
            session = shown(tab)
    tab.keyboard.type("Slots are refilled")
    tab.get_by_text("3 words; usually").wait_for()
    before = tab.locator(".clock b").first.inner_text()
    wait_until(lambda: tab.locator(".clock b").first.inner_text() != before)
    tab.reload()
    shown(tab)
    tab.wait_for_function("document.querySelector('textarea').value === 'Slots are refilled'")


AHEAD = """
    const now = performance.now.bind(performance);
    window.ahead = 0;
    performance.now = () => now() + window.ahead;
"""
"""Let a test put the browser's clock forward."""


def test_the_clock_goes_on_when_the_theme_changes(url: str, tab: Page) -> None:
    tab.add_init_script(AHEAD)
    tab.emulate_media(color_scheme="dark")
    begin(tab, url)
    shown(tab)
    tab.get_by_role("button", name="Begin").press("Enter")
    clock = tab.locator(".clock b").first
    tab.get_by_text("this turn takes no time").wait_for(state="detached")
    shown(tab)
    tab.evaluate("window.ahead = 600_000")
    expect(clock).to_have_text(re.compile("10:"))
    tab.locator(".clock b").evaluate_all("all => all.forEach((each) => { each.dataset.theme = 'dark'; })")
    tab.emulate_media(color_scheme="light")
    tab.locator(".clock b:not([data-theme])").first.wait_for()  # drawn again for the new theme
    expect(clock).to_have_text(re.compile("10:"))


def test_a_drawing_is_kept(url: str, tab: Page) -> None:
    sent: list[bytes | str] = []
    tab.on("websocket", lambda socket: socket.on("framesent", lambda frame: sent.append(frame)))
    begin(tab, url)
    shown(tab)
    tab.get_by_text("Whiteboard", exact=True).click()
    board = tab.locator("svg[viewBox='0 0 640 400']")
    board.hover(position={"x": 20, "y": 20})  # waits until the opened expander stands still
    tab.mouse.down()
    board.hover(position={"x": 120, "y": 60})
    tab.mouse.up()
    board.locator("polyline").wait_for(state="attached")
    wait_until(lambda: tab.locator(AT_REST).count() and any("drawn" in str(frame) for frame in sent))
    tab.get_by_role("button", name="Begin").press("Enter")
    notes = wait_until(lambda: sessions()[0].notes)
    assert notes[0]["note"] == "drawing" and len(notes[0]["strokes"][0]) >= 4

"""In the browser: solve a drill on a real server by keyboard alone; Ctrl-C of `prep app` leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from typer.testing import CliRunner

from app.cli.main import app as prep
from interview.drills.drill import find_drill
from interview.drills.session import read, sessions
from tests.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
AT_REST = "[data-test-script-state=notRunning]"
DRILL = find_drill("D16")
"""One of the shortest loads; one look decides."""


@pytest.fixture
def workbench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`prep app --page drill` and its address. Its temporary files lie in tmp_path."""
    monkeypatch.setenv("PREP_HOME", str(tmp_path / "home"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "app.cli.main", "app", "--no-browser", "--page", "drill"]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield process, process.stdout.readline().strip()
    process.send_signal(signal.SIGINT)
    process.wait(20)


def focus_and_press(tab: Page, role: str, name: str, key: str = "Enter") -> None:
    """Press a key on a control, which the Tab key reaches."""
    control = tab.get_by_role(role, name=name)
    control.wait_for()
    tab.locator(AT_REST).wait_for()
    control.focus()
    assert control.evaluate("control => control.tabIndex >= 0"), name
    tab.keyboard.press(key)


def pick(tab: Page, group: str, place: int) -> None:
    """Choose an option of a radio group with Tab's target and the arrow keys."""
    options = tab.get_by_role("radiogroup", name=group).get_by_role("radio")
    options.first.focus()
    tab.keyboard.press("Space")
    for _ in range(place):
        tab.keyboard.press("ArrowDown")
    tab.locator(AT_REST).wait_for()


def test_a_drill_is_solved_by_keyboard_and_ctrl_c_leaves_nothing(
    workbench: tuple[subprocess.Popen[str], str], tab: Page, tmp_path: Path
) -> None:
    process, url = workbench
    tab.set_viewport_size({"width": 1024, "height": 700})
    tab.goto(url)
    focus_and_press(tab, "combobox", "Symptom", "Enter")
    tab.keyboard.type(DRILL.code)
    tab.get_by_role("option", name=DRILL.code).wait_for()
    tab.keyboard.press("Enter")
    focus_and_press(tab, "button", "Begin")
    tab.get_by_text("Yesterday: the healthy server").wait_for()

    focus_and_press(tab, "button", "ends · 1")
    tab.get_by_role("rowheader", name="requests refused with status 400").wait_for()
    charts = tab.get_by_role("group", name="ends, today and yesterday")
    charts.focus()
    tab.keyboard.press("ArrowRight")
    tab.get_by_text("(yesterday").wait_for()
    assert tab.evaluate("document.documentElement.scrollWidth") <= 1024
    pick(tab, "What is wrong?", DRILL.hypotheses.index(DRILL.cause))
    focus_and_press(tab, "combobox", "Figures that decide", "ArrowDown")
    tab.keyboard.type("status 400")
    tab.keyboard.press("Enter")
    tab.keyboard.press("Escape")
    tab.get_by_role("slider").focus()
    for _ in range(5):
        tab.keyboard.press("ArrowRight")
    focus_and_press(tab, "button", "State it")
    tab.get_by_text("Stated, 55 % sure").wait_for()
    tab.reload()
    tab.get_by_text("Stated, 55 % sure").wait_for()
    assert tab.context.browser is not None
    fresh = tab.context.browser.new_page()
    fresh.goto(tab.url)
    focus_and_press(fresh, "button", "Go on here")
    fresh.get_by_role("button", name="End, and see the score").wait_for()
    tab.get_by_text("This drill is open in another tab").wait_for()
    focus_and_press(tab, "button", "Go on here")
    fresh.close()

    pick(tab, "What do you change?", DRILL.right_fixes[0] - 1)
    focus_and_press(tab, "button", "Apply, and run")
    tab.get_by_text("objective met").wait_for()
    focus_and_press(tab, "button", "End, and see the score")
    tab.get_by_role("heading", name="Debrief · D16").wait_for()
    tab.get_by_text("100 of 100 · solved").wait_for()
    with tab.expect_download() as download:
        focus_and_press(tab, "button", "Download the post-mortem")
    name = sessions()[0]
    report = CliRunner().invoke(prep, ["drill", "report", name, "--markdown"])
    assert Path(download.value.path()).read_text() == report.output
    assert read(name)[-1]["brier"] == pytest.approx(0.2025)

    focus_and_press(tab, "button", "Another drill")
    focus_and_press(tab, "button", "Begin")
    started = psutil.Process(process.pid)
    wait_until(
        lambda: any("faulty_server" in " ".join(c.cmdline()) for c in started.children(recursive=True))
    )
    everything = started.children(recursive=True)
    tab.goto("about:blank")
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0
    assert not psutil.wait_procs(everything, 20)[1]
    assert not list(tmp_path.glob("prep-drill-*"))

"""JupyterLab itself, as `prep lesson open` starts it, in Chromium: run all cells, move a slider, check an exercise."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lessons.course.lesson_files import find_lesson, solution
from prep_common.child_process import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow
RUN_MS = 180_000
RENDERED = "() => new Promise(done => requestAnimationFrame(() => requestIdleCallback(done)))"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """Return a function that starts `prep lesson open` and returns its address."""
    servers: list[subprocess.Popen[str]] = []
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PREP_HOME": str(tmp_path / "home"),
        "PREP_LESSONS": str(tmp_path / "lessons"),
        "PREP_QUICK": "1",
    }

    def opened(number: str) -> str:
        command = [sys.executable, "-m", "app.cli.main", "lesson", "open", number, "--no-browser"]
        server = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        servers.append(server)
        assert server.stdout is not None
        line = server.stdout.readline().strip()
        found = re.search(r"http://127\.0\.0\.1:\d+/lab/tree/\S+", line)
        assert found is not None, line
        return found[0]

    yield opened
    for server in servers:
        server.send_signal(signal.SIGINT)
        server.wait(30)


@pytest.fixture
def lab(browser: Browser) -> Iterator[Page]:
    page = browser.new_context(viewport={"width": 1300, "height": 1000}).new_page()
    page.set_default_timeout(60_000)
    yield page
    page.context.close()


def run_all(page: Page, url: str) -> None:
    """Open the notebook, wait for its kernel, and run all cells."""
    page.goto(url)
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    page.locator("#jp-main-statusbar", has_text="| Idle").wait_for(timeout=RUN_MS)
    page.wait_for_load_state("networkidle")
    assert page.locator(".jp-Dialog").count() == 0, "JupyterLab asks something"
    page.locator(".lm-MenuBar-itemLabel", has_text="Run").click()
    page.locator(".lm-Menu-itemLabel", has_text="Run All Cells").first.click()
    page.locator("#jp-main-statusbar", has_text="| Busy").wait_for()
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status='idle']", timeout=RUN_MS)


@pytest.mark.parametrize("number", ["03", "07"])
def test_a_lesson_works_in_the_browser(number: str, start: Any, lab: Page, tmp_path: Path) -> None:
    lesson = find_lesson(number)
    subprocess.run(  # the learner's copy, with the first exercise solved
        [sys.executable, "-m", "app.cli.main", "lesson", "open", number, "--path"],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PREP_HOME": str(tmp_path / "home"),
            "PREP_LESSONS": str(tmp_path / "lessons"),
        },
        check=True,
    )
    copy = tmp_path / "lessons" / f"{lesson.name}.ipynb"
    notebook = json.loads(copy.read_text())
    exercise = f"{number}.1"
    for cell in notebook["cells"]:
        cell["outputs"] = [] if cell["cell_type"] == "code" else cell.get("outputs", [])
        if cell["id"] == f"{lesson.name[:3]}-{exercise.replace('.', '-')}":
            cell["source"] = solution(exercise)
        if cell["cell_type"] == "markdown":
            cell.pop("outputs", None)
    copy.write_text(json.dumps(notebook))
    run_all(lab, start(number))
    assert lab.locator(".jp-RenderedText[data-mime-type='application/vnd.jupyter.error']").count() == 0
    seen = scroll_through(lab)
    assert f"{exercise}: " in seen and "solved" in seen
    assert lab.locator(".jp-RenderedImage img").count() + lab.locator(".widget-image").count() >= 1
    control = lab.locator(".widget-slider, .widget-dropdown, .widget-text, .widget-checkbox").first
    control.scroll_into_view_if_needed()
    status = lab.locator("pre[role='status']").first
    before = status.inner_text()
    move(lab, control)
    lab.wait_for_function(
        "before => document.querySelector(\"pre[role='status']\").innerText !== before", arg=before
    )


def scroll_through(page: Page) -> str:
    """Return the text of the whole notebook: JupyterLab renders cells when they come into view."""
    text = []
    panel = page.locator(".jp-WindowedPanel-outer").first
    height = panel.evaluate("node => node.scrollHeight")
    for top in range(0, int(height) + 1, 600):
        panel.evaluate("(node, top) => node.scrollTo(0, top)", top)
        page.evaluate(RENDERED)
        text.append(page.locator(".jp-Notebook").inner_text())
    return "\n".join(text)


def move(page: Page, control: Any) -> None:
    """Use a control by keyboard, as a user without a mouse would."""
    if control.locator("select").count():
        select = control.locator("select")
        # By number: a text read while Jupyter draws the widget again may be of an option that is gone.
        select.select_option(index=select.locator("option").count() - 1)
        return
    handle = control.locator(".noUi-handle, input").first
    handle.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")

"""In the browser: watch a real `prep serve shop` with a key under `prep load`; it dies, and comes back."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.server.processes import ROOT, start_server

if TYPE_CHECKING:
    from playwright.sync_api import Page

KEY = "k-4711"


def wait_for_state(tab: Page, state: str) -> str:
    """Return what the status line says once it has this state."""
    line = tab.locator(f'.server-status[data-state="{state}"]')
    line.wait_for()
    return line.inner_text()


def figures(tab: Page) -> dict[str, str]:
    """Return the table of totals."""
    rows = tab.locator("table").last.locator("tr").all_inner_texts()
    return {name.strip(): value.strip() for name, _, value in (row.partition("\t") for row in rows)}


@pytest.mark.slow
def test_watch_a_server_under_load_that_dies_and_comes_back(app_url: str, tab: Page, tmp_path: Path) -> None:
    with ExitStack() as stack:
        options = ("--api-key", KEY, "--num-gpu-blocks-override", "256")
        served = start_server(stack, tmp_path, *options)
        tab.goto(f"{app_url}/server?url={served.url}")
        assert "cannot be watched" in wait_for_state(tab, "cannot watch")
        tab.get_by_text("asks for a key").wait_for()
        tab.get_by_label("Key").fill(KEY)
        tab.get_by_label("Key").press("Enter")
        assert "answers · shop" in wait_for_state(tab, "answers")
        assert KEY not in tab.url and re.search(r"/server\?url=http", tab.url)

        command = [sys.executable, "-m", "app.cli.main", "load", served.url, "--api-key", KEY, "--json"]
        load = subprocess.run(
            [*command, "--rate", "6", "--duration", "4", "--arrivals", "constant", "--output", "20"],
            capture_output=True, text=True, cwd=ROOT,
        )  # fmt: skip
        assert load.returncode == 0, load.stderr
        report = json.loads(load.stdout)
        number = f"{report['output_tokens']:,}"
        tab.locator("table").last.get_by_text(number, exact=True).wait_for()
        assert figures(tab)["ended requests"] == "24" and figures(tab)["output tokens"] == number
        latencies = tab.locator("table").first.inner_text()
        assert latencies.count("ms") + latencies.count(" s") >= 9 and "–" not in latencies
        output = tab.locator("figcaption", has_text="Output").inner_text()
        assert re.search(r"Output [1-9]", output), output

        tab.locator(".lines .grid").focus()
        tab.keyboard.press("ArrowLeft")
        tab.get_by_text(re.compile(r"\d s ago: running \d")).wait_for()

        served.kill()
        assert f"no server at {served.url}" in wait_for_state(tab, "away")
        start_server(stack, tmp_path, *options, port=served.port)
        wait_for_state(tab, "answers")
        totals = tab.locator("table").last.locator("tr", has_text="output tokens")
        totals.get_by_text("0", exact=True).wait_for()
        tab.set_viewport_size({"width": 375, "height": 740})
        assert tab.evaluate("document.documentElement.scrollWidth") <= 375

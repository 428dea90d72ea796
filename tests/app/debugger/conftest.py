"""A real server and a real browser: `prep app` on a free port, Debian's Chromium without a window."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.trace.trace_workloads import random_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

    from tests.app.debugger.pages import Opener

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that fails says so and goes on; in a test it raises."""
    monkeypatch.setenv("PREP_DEBUG", "1")


@pytest.fixture(scope="session")
def app_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`PREP_HOME` of the server."""
    return tmp_path_factory.mktemp("prep-home")


@pytest.fixture(scope="session")
def app_url(app_home: Path) -> Iterator[str]:
    """The address of a running `prep app`, without a slash at its end."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PREP_HOME": str(app_home)}
    command = [sys.executable, "-m", "app.cli.main", "app", "--no-browser"]
    server = subprocess.Popen(command, env=environment, cwd=app_home, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    url = server.stdout.readline().strip()
    assert url.startswith("http://127.0.0.1:"), url
    yield url.rstrip("/")
    server.send_signal(signal.SIGINT)
    server.wait(20)


@pytest.fixture
def open_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Opener:
    """Run a page without a browser: open_page("step", trace, request="r5"). Its code must raise nothing."""
    from streamlit.testing.v1 import AppTest

    from tests.app.debugger.pages import MAIN

    monkeypatch.setenv("PREP_HOME", str(tmp_path))

    def opened(page: str, path: Path | None = None, **parameters: object) -> AppTest:
        monkeypatch.setenv("PREP_APP_PAGE", page)
        app = AppTest.from_file(str(MAIN), default_timeout=30)
        if path is not None:
            app.query_params["run"] = f"file:{path}"
        for name, value in parameters.items():
            app.query_params[name] = str(value)
        app.run()
        assert not app.exception, [(error.message, error.stack_trace) for error in app.exception]
        return app

    return opened


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """104 steps with hits, preemptions, evictions and aborts."""
    return random_run(tmp_path_factory.mktemp("run") / "run.itrace", seed=7, num_requests=24).path


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add what the page shows to the report of a failure."""
    report = yield
    page = getattr(item, "funcargs", {}).get("tab")
    if report.failed and page is not None and report.when == "call":
        with suppress(Exception):  # a page that crashed shows nothing
            report.sections.append((f"the page, {page.url}", page.locator("body").inner_text()[:6000]))
    return report


@pytest.fixture
def tab(browser: Browser) -> Iterator[Page]:
    """A tab 1280 px wide. Fails the test if the page asks for anything off this machine or logs an error."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(60_000)
    outside: list[str] = []
    errors: list[str] = []
    page.on("request", lambda request: outside.append(request.url) if _is_outside(request.url) else None)
    page.on("console", lambda message: errors.append(message.text) if _is_error(message) else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    context.close()
    assert not outside, f"the page asked for {outside}"
    assert not errors, f"the browser's console says {errors}"


def _is_error(message: ConsoleMessage) -> bool:
    """Opened at `/step`, Streamlit's page looks for its server below `/step/` first and finds it in the second place:
    the browser logs that as an error, and it is none."""
    is_search = "/_stcore/" in message.location.get("url", "") and "404" in message.text
    return message.type == "error" and not is_search


def _is_outside(url: str) -> bool:
    return not url.startswith(("http://127.0.0.1", "ws://127.0.0.1", "data:", "blob:"))

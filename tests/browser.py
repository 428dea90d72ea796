"""Debian's Chromium without a window, for tests of pages and notebooks."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from fcntl import LOCK_EX, flock
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def install_chromium() -> None:
    """On a Debian where we are root; two test processes do it one after the other."""
    from app.bench.debugger_browser import find_chromium

    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return
    with open(Path(gettempdir()) / "prep-chromium.lock", "w") as lock:
        flock(lock, LOCK_EX)
        if find_chromium() is None:
            subprocess.run(["apt-get", "update", "-qq"], check=False, capture_output=True)
            install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"]
            subprocess.run(
                install,
                check=False,
                capture_output=True,
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            )


@pytest.fixture(scope="session")
def chromium() -> str:
    """Its path; installed where it is missing and that can be done."""
    from app.bench.debugger_browser import MISSING, find_chromium

    if find_chromium() is None:
        install_chromium()
    executable = find_chromium()
    if executable is None:
        pytest.skip(MISSING)
    return executable


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    """One for each module: while playwright lives, its event loop counts as running, and other tests want their own."""
    from playwright.sync_api import sync_playwright

    from app.bench.debugger_browser import FLAGS

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        yield browser
        browser.close()

"""Chromium for the benchmarks, the tests and the README's pictures."""

from __future__ import annotations

import os
import shutil

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
MISSING = "needs Chromium: apt-get install chromium, or PREP_CHROMIUM=/path/to/it"


def find_chromium() -> str | None:
    """Return `PREP_CHROMIUM`, else the first Chromium on the path, else None."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("PREP_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)

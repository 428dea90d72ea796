"""The Chromium that benchmarks, tests and the README's pictures are run in."""

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
    """`PREP_CHROMIUM`, or the first on the path; None where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("PREP_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)

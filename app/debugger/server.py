"""The server process of the workbench: Streamlit, with imports and the first trace loaded early.

    python -m app.debugger.server run SCRIPT [Streamlit's settings]

Streamlit imports a page when a browser first requests it, and the page then reads its run. Here both start with the
server, while the browser still loads Streamlit's scripts.
"""

from __future__ import annotations

import logging
import os
import sys
from importlib import import_module
from pathlib import Path
from threading import Thread
from time import sleep

from streamlit import runtime
from streamlit.web.cli import main

from app.debugger.first_paint import styled_index
from app.debugger.runs import REPLAY_BYTES
from app.debugger.trace_scan import ContradictionError
from app.debugger.trace_store import open_columns, text_limit
from engine.trace.format import TraceError

TRACE = "PREP_APP_TRACE"
"""Environment variable: the trace file that the browser will request first."""
PAGE_MODULES = ("app.debugger.main", "app.debugger.pages.step")

logger = logging.getLogger(__name__)


def read_ahead(path: Path) -> None:
    """Put the columns of a large trace into the cache. Errors are shown later, on the page of the trace."""
    try:
        if path.stat().st_size > REPLAY_BYTES:
            open_columns(path, text_limit())
    except (OSError, TraceError, ContradictionError) as error:
        logger.info("%s was not read ahead: %s", path, error)


def import_pages() -> None:
    """Import the pages once the server runs, which modules with caches require."""
    while not runtime.exists():
        sleep(0.02)
    for name in PAGE_MODULES:
        import_module(name)


if __name__ == "__main__":
    if trace := os.environ.get(TRACE):
        Thread(target=read_ahead, args=(Path(trace),), daemon=True).start()
    Thread(target=import_pages, daemon=True).start()
    with styled_index():
        sys.exit(main())

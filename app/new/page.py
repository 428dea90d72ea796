"""`prep new page NAME`: a page of the app about a run, and its tests."""

from __future__ import annotations

NEXT = """\
a row "NAME" in PAGES of app/debugger/main.py, and a state in STATES of tests/app/debugger/test_addresses.py
prep test --no-lint tests/app/debugger/test_NAME_page.py  names what is missing
prep test --no-lint tests/app/debugger/test_addresses.py tests/app/debugger/test_damaged_runs.py -k NAME
prep app  look at it; app/debugger/README.md
prep test --no-lint tests/app/debugger -m browser -k "accessibility or layout"  narrow screens, contrast, keyboard"""

_TEXT = '''\
"""Page {title}: FILL IN what it shows."""

from __future__ import annotations

import streamlit as st

from app.debugger.page_frame import opened, run_page
from app.debugger.runs import Run


def show() -> None:
    run_page("{title}", _show)


def _show(run: Run) -> None:
    step = opened(run, "{title}", "{name}")
    if step is None:
        return
    st.markdown("FILL IN what the page shows of the run at the step")
'''
_TESTS = '''\
"""Page {title}: what it shows of a run."""

from __future__ import annotations

from pathlib import Path

from app.debugger.main import PAGES
from app.debugger.pages import {name}
from prep_common.text import unfilled
from tests.app.debugger.pages import Opener, said


def test_it_is_complete() -> None:
    assert "{name}" in PAGES, "{name}: no row in PAGES of app/debugger/main.py"
    texts = (Path(file).read_text(encoding="utf-8") for file in ({name}.__file__, __file__))
    left = [what for text in texts for what in unfilled(text)]
    assert not left, "\\n".join(left)


def test_it_shows_the_run(open_page: Opener, trace: Path) -> None:
    page = open_page("{name}", trace)
    assert "FILL IN a sentence of the page" in said(page)
'''


def skeleton(name: str) -> dict[str, str]:
    """Return the files of a new page."""
    title = name.replace("_", " ").capitalize()
    return {
        f"app/debugger/pages/{name}.py": _TEXT.format(name=name, title=title),
        f"tests/app/debugger/test_{name}_page.py": _TESTS.format(name=name, title=title),
    }

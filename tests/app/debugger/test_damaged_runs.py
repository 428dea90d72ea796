"""Every page works while damaged files lie among the user's runs, and says what is wrong when one is opened."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from app.debugger import main
from app.debugger.main import PAGES
from app.debugger.runs import RECORDED
from tests.app.debugger.pages import Opener, said

WHOLE = (RECORDED / "memory-pressure.itrace").read_bytes()
DAMAGE = {
    "truncated": WHOLE[: len(WHOLE) // 2],
    "empty": b"",
    "noise": random.Random(5).randbytes(4096),
    "nested": gzip.compress(b"[" * 200_000 + b"]" * 200_000 + b"\n"),
    "twice": gzip.compress(WHOLE),
}
"""Name of the run -> its bytes."""
UNREADABLE = [name for name in DAMAGE if name != "truncated"]
SOURCES = {page: Path(main.__file__).parent / "pages" / f"{page}.py" for page in PAGES}
OF_A_RUN = [*(page for page, source in SOURCES.items() if "run_page(" in source.read_text()), "compare"]
"""Pages that show the selected run."""


@pytest.fixture
def damaged(tmp_path: Path) -> None:
    """The user's runs; `open_page` sets PREP_HOME to tmp_path."""
    (tmp_path / "runs").mkdir()
    for name, data in DAMAGE.items():
        (tmp_path / "runs" / f"{name}.itrace").write_bytes(data)


@pytest.mark.usefixtures("damaged")
@pytest.mark.parametrize("page", PAGES)
def test_a_page_works_beside_damaged_runs(open_page: Opener, page: str) -> None:
    app = open_page(page, run="memory-pressure", step=34)
    wrong = [error.value for error in app.error]
    assert len(wrong) == (len(UNREADABLE) if page == "runs" else 0), wrong
    assert all("is not a trace" in each for each in wrong)


@pytest.mark.usefixtures("damaged")
@pytest.mark.parametrize("page", OF_A_RUN)
def test_a_page_says_what_is_wrong_with_a_damaged_run(open_page: Opener, page: str) -> None:
    for name in UNREADABLE:
        app = open_page(page, run=f"mine:{name}")
        assert [f"{name}.itrace is not a trace" in error.value for error in app.error] == [True], name
        assert len(app.title) == 1
    whole_part = open_page(page, run="mine:truncated", step=5)
    assert not whole_part.error
    assert "truncated" in said(whole_part) or "incomplete" in said(whole_part)

"""The page Runs, and what it does with a user's own files."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import Page
from streamlit.testing.v1 import AppTest

from app.debugger.catalogue import load_catalogue
from app.debugger.own_runs import delete, keep_upload, rename
from app.debugger.runs import RECORDED, open_run, runs_dir
from engine.core.trace_format import TraceError

SCRIPT = Path(__file__).resolve().parents[3] / "app" / "debugger" / "entry" / "workbench.py"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PREP_HOME", str(tmp_path))
    return tmp_path


def page() -> AppTest:
    test = AppTest.from_file(str(SCRIPT), default_timeout=30).run()
    assert not test.exception
    return test


def test_every_recorded_run_has_a_card() -> None:
    labels = [button.label for button in page().button]
    assert [entry.title for entry in load_catalogue().values()] == labels[: len(load_catalogue())]


def test_what_is_wrong_with_a_path_is_said() -> None:
    test = page()
    test.text_input[0].input("/nowhere/run.itrace")
    next(button for button in test.button if button.label == "Open").click().run()
    assert "no file run.itrace" in test.error[0].value


def test_an_own_run_is_listed_and_verified() -> None:
    runs_dir().mkdir()
    shutil.copy(RECORDED / "swap.itrace", runs_dir() / "friday.itrace")
    test = page()
    assert any("friday" in text.value for text in test.markdown)
    test.button(key="verify_mine:friday").click().run()
    assert "every step replayed" in test.success[0].value


def test_a_file_that_is_no_trace_is_among_the_own_runs_with_its_fault() -> None:
    runs_dir().mkdir()
    (runs_dir() / "broken.itrace").write_bytes(gzip.compress(b"hello\n"))
    assert "is not a trace" in page().error[0].value


def test_a_cut_off_file_is_opened_as_far_as_it_goes() -> None:
    data = (RECORDED / "burst.itrace").read_bytes()
    run = open_run(keep_upload("cut.itrace", data[: len(data) // 2]))
    assert run.index.num_steps < open_run("burst").index.num_steps
    assert any("cut off" in warning for warning in run.warnings)


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04"])
def test_an_upload_that_is_no_trace_leaves_nothing_behind(data: bytes) -> None:
    with pytest.raises(TraceError, match="is not a trace"):
        keep_upload("x.itrace", data)
    assert not runs_dir().exists()


def test_names_are_kept_apart() -> None:
    data = (RECORDED / "swap.itrace").read_bytes()
    assert [keep_upload("a.itrace", data) for _ in range(2)] == ["mine:a", "mine:a-2"]
    with pytest.raises(TraceError, match="already"):
        rename("mine:a-2", "a")
    with pytest.raises(TraceError, match="no name"):
        rename("mine:a-2", "../..")
    assert rename("mine:a-2", "the other") == "mine:the-other"
    delete("mine:a")
    assert [path.name for path in runs_dir().iterdir()] == ["the-other.itrace"]


def test_what_ships_is_never_deleted() -> None:
    with pytest.raises(TraceError, match="left as it is"):
        delete("memory-pressure")
    assert (RECORDED / "memory-pressure.itrace").exists()


@pytest.mark.slow
def test_first_use_from_the_list_to_a_preemption_explained(app_url: str, tab: Page) -> None:
    tab.goto(app_url)
    tab.get_by_role("button", name="Memory pressure").click()
    view = tab.locator("[data-step]").first
    view.wait_for()
    tab.keyboard.press("Home")
    tab.keyboard.press("b")
    tab.get_by_text("was preempted").first.wait_for()
    sentence = tab.get_by_text("was preempted").first.inner_text()
    assert (
        "needed 1 block with 0 free" in sentence and "gave back" in sentence and "computed tokens" in sentence
    )


@pytest.mark.slow
def test_the_list_fits_a_phone(app_url: str, tab: Page) -> None:
    tab.set_viewport_size({"width": 375, "height": 800})
    tab.goto(app_url)
    tab.get_by_role("button", name="Aborts").or_(
        tab.get_by_role("button", name="Clients that hang up")
    ).wait_for()
    assert tab.evaluate("document.documentElement.scrollWidth") <= 375

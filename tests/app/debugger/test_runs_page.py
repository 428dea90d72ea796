"""The page Runs, and what it does with a user's own files."""

from __future__ import annotations

import gzip
import json
import shutil
import zlib
from pathlib import Path

import pytest
from playwright.sync_api import Page
from streamlit.testing.v1 import AppTest

from app.debugger.catalogue import load_catalogue
from app.debugger.own_runs import delete, keep_upload, rename
from app.debugger.runs import RECORDED, open_run, runs_dir
from engine.trace.format import TraceError

SCRIPT = Path(__file__).resolve().parents[3] / "app" / "debugger" / "entry" / "workbench.py"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the page a folder of its own, without the live runs that other tests of this process hold."""
    monkeypatch.setenv("PREP_HOME", str(tmp_path))
    monkeypatch.setattr("app.debugger.pages.runs.live_runs", list)
    return tmp_path


def page() -> AppTest:
    test = AppTest.from_file(str(SCRIPT), default_timeout=30).run()
    assert not test.exception
    return test


def test_every_recorded_run_has_a_card() -> None:
    labels = [button.label for button in page().button]
    titles = [entry.title for entry in load_catalogue().values()]
    assert sorted(labels[: len(titles)]) == sorted(titles)
    assert labels[0] == "Memory pressure", "the run to watch first"


def test_what_is_wrong_with_a_path_is_said() -> None:
    test = page()
    test.text_input[0].input("/nowhere/run.itrace")
    [button for button in test.button if button.label == "Open"][-1].click().run()  # below those of runs
    assert "no file run.itrace" in test.error[0].value


def test_an_own_run_is_listed_and_verified() -> None:
    runs_dir().mkdir()
    shutil.copy(RECORDED / "swap.itrace", runs_dir() / "friday.itrace")
    test = page()
    assert any("friday" in text.value for text in test.markdown)
    headings = [each.value for each in test.header]
    assert headings.index("Your runs") == 1, "below the run to watch first, above all other shipped ones"
    test.button(key="verify_mine:friday").click().run()
    assert "every step was replayed" in test.success[0].value


def test_a_file_that_is_no_trace_is_among_the_own_runs_with_its_fault() -> None:
    runs_dir().mkdir()
    (runs_dir() / "broken.itrace").write_bytes(gzip.compress(b"hello\n"))
    assert "is not a trace" in page().error[0].value


def test_a_cut_off_file_is_opened_as_far_as_it_goes() -> None:
    data = (RECORDED / "burst.itrace").read_bytes()
    run = open_run(keep_upload("cut.itrace", data[: len(data) // 2]))
    assert run.index.num_steps < open_run("burst").index.num_steps
    assert any("truncated" in warning for warning in run.warnings)


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", gzip.compress(b"hello\n", mtime=0)])
def test_an_upload_that_is_no_trace_leaves_nothing_behind(data: bytes) -> None:
    with pytest.raises(TraceError, match="is not a trace"):
        keep_upload("x.itrace", data)
    assert not list(runs_dir().glob("*"))


def test_names_are_kept_apart() -> None:
    data = (RECORDED / "swap.itrace").read_bytes()
    assert [keep_upload("a.itrace", data) for _ in range(2)] == ["mine:a", "mine:a-2"]
    with pytest.raises(TraceError, match="already"):
        rename("mine:a-2", "a")
    with pytest.raises(TraceError, match="is not valid"):
        rename("mine:a-2", "../..")
    assert rename("mine:a-2", "the other") == "mine:the-other"
    delete("mine:a")
    assert [path.name for path in runs_dir().iterdir()] == ["the-other.itrace"]


def test_what_ships_is_never_deleted() -> None:
    with pytest.raises(TraceError, match="was not changed"):
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
        "needed 1 block when 0 were free" in sentence
        and "released" in sentence
        and "computed tokens" in sentence
    )


@pytest.mark.slow
def test_the_list_fits_a_phone(app_url: str, tab: Page) -> None:
    tab.set_viewport_size({"width": 375, "height": 800})
    tab.goto(app_url)
    tab.get_by_role("button", name="Aborts").or_(
        tab.get_by_role("button", name="Aborted requests")
    ).wait_for()
    assert tab.evaluate("document.documentElement.scrollWidth") <= 375


def test_a_trace_of_a_newer_prep_is_refused_in_words() -> None:
    lines = gzip.decompress((RECORDED / "swap.itrace").read_bytes()).split(b"\n")
    header = json.loads(lines[0]) | {"v": 99}
    path = runs_dir() / "newer.itrace"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(b"\n".join([json.dumps(header).encode(), *lines[1:]])))
    assert any("trace format 99" in error.value and "update prep" in error.value for error in page().error)


def test_the_run_of_a_crashed_engine_is_opened_up_to_its_error() -> None:
    """Its last record is the error: the steps before it are there, and the card says what the engine raised."""
    lines = gzip.decompress((RECORDED / "burst.itrace").read_bytes()).split(b"\n")[:-1]
    steps = [n for n, line in enumerate(lines) if json.loads(line)["t"] == "step"]
    kept = lines[: steps[20]]
    log = zlib.crc32(b"".join(line + b"\n" for line in kept))
    error = {"t": "error", "i": 20, "ts": 1.0, "message": "RuntimeError: boom", "log": f"{log:08x}"}
    path = runs_dir() / "crashed.itrace"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(b"\n".join([*kept, json.dumps(error).encode(), b""])))
    run = open_run("mine:crashed")
    assert run.index.num_steps == 20 and run.reader(0).problems == []
    test = page()
    assert any("the engine raised RuntimeError: boom" in caption.value for caption in test.caption)
    assert test.button(key="open_mine:crashed")


def test_an_own_run_is_renamed_and_deleted_on_the_page() -> None:
    runs_dir().mkdir()
    shutil.copy(RECORDED / "swap.itrace", runs_dir() / "friday.itrace")
    test = page()
    test.text_input(key="name_mine:friday").input("swap.itrace again")
    test.button(key="rename_mine:friday").click().run()
    (renamed,) = runs_dir().iterdir()
    assert not test.exception and renamed.stem != "friday"
    run_id = f"mine:{renamed.stem}"
    test.button(key=f"delete_{run_id}").click().run()
    cancel, confirm = test.button(key=f"keep_{run_id}"), test.button(key=f"confirm_{run_id}")
    assert (cancel.proto.type, confirm.proto.type) == ("primary", "secondary")
    cancel.click().run()
    assert list(runs_dir().iterdir()) == [renamed], "the first click asks, and Cancel keeps the run"
    test.button(key=f"delete_{run_id}").click().run()
    test.button(key=f"confirm_{run_id}").click().run()
    assert not test.exception and list(runs_dir().iterdir()) == []


@pytest.mark.slow
def test_from_the_list_to_a_preemption_by_keyboard_alone(app_url: str, tab: Page) -> None:
    tab.goto(app_url)
    tab.get_by_role("button", name="Memory pressure").wait_for()
    for _ in range(60):
        tab.keyboard.press("Tab")
        if tab.evaluate("document.activeElement.innerText").strip() == "Memory pressure":
            break
    tab.keyboard.press("Enter")
    tab.locator("[data-step]").first.wait_for()
    tab.keyboard.press("Home")
    tab.keyboard.press("b")
    tab.get_by_text("was preempted").first.wait_for()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "told"), [(b"PK\x03\x04 no trace", "is not a trace"), (b"\x1f\x8b\x08", "is not a trace")]
)
def test_an_upload_that_is_no_trace_is_told_so(app_url: str, tab: Page, data: bytes, told: str) -> None:
    tab.goto(app_url)
    tab.get_by_role("button", name="Attach").wait_for()
    tab.locator("input[type=file]").set_input_files(
        {"name": "odd.itrace", "mimeType": "application/octet-stream", "buffer": data}
    )
    tab.get_by_text(told).first.wait_for()

"""Bad input to the workbench: every page answers with a sentence, never a traceback."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest
from typer.testing import CliRunner

from app.cli import terminal
from app.cli.main import app as cli
from app.debugger import own_runs
from app.debugger.own_runs import keep_upload
from app.debugger.page_frame import in_words, plain, told
from app.debugger.runs import RECORDED, open_run, path_of
from engine.trace.format import TraceError
from engine.trace.sentence import sentence

MAIN = Path(__file__).parents[3] / "app" / "debugger" / "entry" / "workbench.py"
LINES = gzip.decompress((RECORDED / "memory-pressure.itrace").read_bytes()).splitlines()
HEADER = json.loads(LINES[0])
HEADER_FIELDS_SINCE = (
    "config",
    "seed",
    "code_rev",
    "machine",
    "workload_hash",
    "fingerprint",
    "scheduler_cls",
)


def written(path: Path, header: dict[str, Any], lines: list[bytes] = LINES[1:]) -> Path:
    path.write_bytes(gzip.compress(b"\n".join([json.dumps(header).encode(), *lines, b""])))
    return path


def opened(monkeypatch: pytest.MonkeyPatch, page: str, **parameters: str) -> AppTest:
    monkeypatch.setenv("PREP_APP_PAGE", page)
    test = AppTest.from_file(str(MAIN), default_timeout=30)
    for name, value in parameters.items():
        test.query_params[name] = value
    test.run()
    assert not test.exception, [(error.message, error.stack_trace) for error in test.exception]
    return test


def said(test: AppTest) -> str:
    return "\n".join(error.value for error in test.error)


@pytest.mark.parametrize(
    "damage",
    [
        {"blocks": 10**12},
        {"blocks": -1},
        {"block_size": 0},
        {"config": [1]},
        {"config": {"scheduler": "fcfs"}},
        {"v": "1"},
    ],
)
def test_a_header_that_makes_no_sense_is_no_trace(tmp_path: Path, damage: dict[str, Any]) -> None:
    path = written(tmp_path / "run.itrace", {**HEADER, **damage})
    with pytest.raises(TraceError, match="is not a trace"):
        open_run(f"file:{path}")


@pytest.mark.parametrize("page", ["step", "requests", "metrics", "kernel", "compare", "learn"])
def test_a_header_without_what_came_later_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    old = {name: value for name, value in HEADER.items() if name not in HEADER_FIELDS_SINCE}
    path = written(tmp_path / "old.itrace", old)
    assert not said(opened(monkeypatch, page, run=f"file:{path}", step="40"))


def test_a_run_whose_name_is_no_file_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for run_id in (
        "b" * 300,
        f"mine:{'a' * 300}",
        f"file:/tmp/{'a' * 5000}",
        "file:\0",
        "mine:../../etc/passwd",
    ):
        with pytest.raises(TraceError):
            path_of(run_id)
    with pytest.raises(TraceError, match="is a folder"):
        path_of("file:/tmp")
    assert "too long" in said(opened(monkeypatch, "step", run="b" * 300))


@pytest.mark.slow
@pytest.mark.parametrize("step", ["9" * 5000, "9" * 30, "999999", "-3", "²", "1e3"])
def test_a_step_that_there_is_not_opens_the_run(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    for page in ("step", "blocks"):
        assert not said(opened(monkeypatch, page, run="memory-pressure", step=step, block=step))


def test_a_part_of_a_page_that_runs_alone_fails_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREP_DEBUG")

    def broken() -> None:
        import streamlit as st

        from app.debugger.page_frame import in_words
        from engine.trace.format import TraceError

        def lost() -> None:
            raise TraceError("the run is gone. The page Runs lists what there is")

        def wrong() -> None:
            raise KeyError("x")

        st.fragment(in_words(lost))()
        st.fragment(in_words(wrong))()

    test = AppTest.from_function(broken).run()
    assert not test.exception
    assert test.error[0].value.startswith("the run is gone") and "KeyError" in test.error[1].value
    assert in_words(broken).__name__ == "broken"


def test_a_home_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.write_text("a file where a folder should be")
    monkeypatch.setenv("PREP_HOME", str(home))
    with pytest.raises(TraceError, match="cannot be kept.*PREP_HOME"):
        keep_upload("run.itrace", (RECORDED / "swap.itrace").read_bytes())
    for page in ("runs", "step", "compare"):
        assert not said(opened(monkeypatch, page, run="memory-pressure"))


def refused(action: Callable[[], object]) -> str:
    with pytest.raises(TraceError) as caught:
        action()
    return str(caught.value)


def test_a_run_that_cannot_be_renamed_or_deleted_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREP_HOME", str(tmp_path))
    run_id = keep_upload("swap.itrace", (RECORDED / "swap.itrace").read_bytes())

    def full(*args: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    for method in ("rename", "unlink"):
        monkeypatch.setattr(Path, method, full)
    assert "No space left" in refused(lambda: own_runs.rename(run_id, "other"))
    assert "No space left" in refused(lambda: own_runs.delete(run_id))
    assert path_of(run_id).is_file()


@pytest.mark.parametrize(
    ("words", "because"),
    [
        (["--page", "nonsense"], "unknown page 'nonsense'"),
        (["--attach", "garbage"], "is not the address of a debug port"),
        (["--attach", "http://example.org/?token=x"], "is not the address of a debug port"),
        (["--trace", "/tmp"], "there is no file"),
        (["--step", "-3"], "--step"),
        (["--port", "99999"], "--port"),
    ],
)
def test_prep_app_refuses_before_it_starts_a_server(
    monkeypatch: pytest.MonkeyPatch, words: list[str], because: str
) -> None:
    monkeypatch.delenv("PREP_DEBUG")
    result = CliRunner().invoke(cli, ["app", "--no-browser", *words])
    assert result.exit_code == terminal.USAGE
    assert because in " ".join(result.stderr.split())


MARKUP = "![x](http://example.org/x.png) **b** :red[r] $x^2$ `c` <img src=x onerror=alert(1)>"


@pytest.mark.slow
def test_no_name_is_read_as_markdown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture in a request's name, or in a link, would be fetched from another machine."""
    lines = [line.replace(b'"r":"', f'"r":{json.dumps(MARKUP)[:-1]}'.encode()) for line in LINES[1:]]
    path = written(tmp_path / "run.itrace", HEADER, lines)
    name = next(json.loads(line)["r"] for line in lines if b'"r":"' in line)
    for page in ("requests", "blocks", "kernel", "learn", "step", "compare"):
        test = opened(monkeypatch, page, run=f"file:{path}", step="34", request=name, block="5")
        assert not said(test)
        for kind in ("markdown", "caption", "header", "info", "warning", "error"):
            for element in test.get(kind):
                assert "![x](" not in str(element.value), (page, element)
    for parameters in ({"run": MARKUP}, {"run": "memory-pressure", "request": MARKUP}):
        for page in ("step", "requests", "kernel"):
            test = opened(monkeypatch, page, **parameters)
            assert not any(
                "![x](" in element.value
                for kind in ("error", "warning", "info")
                for element in test.get(kind)
            )


def test_code_in_a_sentence_stays_code() -> None:
    assert told("no [run] called *x*: `prep trace record` makes one") == (
        r"no \[run\] called \*x\*: `prep trace record` makes one"
    )


def test_a_port_that_is_taken_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another workbench there would answer in the place of the new one."""
    monkeypatch.delenv("PREP_DEBUG")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        result = CliRunner().invoke(cli, ["app", "--no-browser", "--port", str(port)])
    assert result.exit_code == terminal.ENVIRONMENT
    assert f"port {port} cannot be used" in result.stderr and "--port 0" in result.stderr


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 200_000 + b"]" * 200_000,
        b'{"t":"hdr","v":1,"blocks":9,"block_size":16,"config":' + b'{"a":' * 99_999 + b"1" + b"}" * 100_000,
    ],
)
def test_an_upload_that_cannot_be_read_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes
) -> None:
    monkeypatch.setenv("PREP_HOME", str(tmp_path))
    with pytest.raises(TraceError, match=r"nested\.itrace is not a trace"):
        keep_upload("nested.itrace", gzip.compress(text + b"\n"))
    assert not list((tmp_path / "runs").iterdir())


def test_a_line_that_is_nested_too_deeply_loses_its_step_and_the_later_ones(tmp_path: Path) -> None:
    path = written(tmp_path / "run.itrace", HEADER, [*LINES[1:9], b"[" * 200_000, *LINES[9:]])
    run = open_run(f"file:{path}")
    assert any("cannot be replayed" in warning for warning in run.warnings)


def test_a_file_that_unpacks_to_a_thousand_times_its_size_is_read_up_to_there(tmp_path: Path) -> None:
    path = tmp_path / "run.itrace"
    path.write_bytes(gzip.compress(b"\n".join(LINES[:9]) + b"\n") + gzip.compress(bytes(300 << 20), 1))
    run = open_run(f"file:{path}")
    assert any("more than 100 times" in warning for warning in run.warnings), run.warnings


def test_a_name_that_turns_the_direction_of_text_is_shown_with_escapes(tmp_path: Path) -> None:
    turned = "\u202eeve\u2066\x07"
    lines = [line.replace(b'"r":"eve"', f'"r":{json.dumps(turned)}'.encode()) for line in LINES[1:]]
    run = open_run(f"file:{written(tmp_path / 'run.itrace', HEADER, lines)}")
    assert run.index.requests[-1].request_id == turned, "the trace keeps the name"
    for shown in (sentence(run.reader(34), 34), plain(turned), told(f"no request {turned}")):
        assert shown.isprintable() and "u202eeve" in shown

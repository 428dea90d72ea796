"""`prep app` and `prep demo --open`: they start, they say where, and they leave nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from urllib.error import URLError

import pytest
from typer.testing import CliRunner

from app.cli import terminal
from app.cli.main import app
from app.debugger.runs import RECORDED, open_run
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def tracebacks() -> None:
    """None: commands are tested as users see them."""


def start(home: Path, *words: str, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PREP_HOME": str(home), "BROWSER": "true"}
    command = [*before, sys.executable, "-m", "app.cli.main", *words]
    return subprocess.Popen(command, env=environment, cwd=home, stdout=subprocess.PIPE, text=True)


def address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return next(line.strip() for line in process.stdout if line.startswith("http://"))


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_the_server_ends_with_the_command(tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path, "app", "--no-browser")
    url = address(process)
    with urllib.request.urlopen(f"{url}_stcore/health") as answer:
        assert answer.status == 200
    process.send_signal(number)
    assert process.wait(30) == 0
    with pytest.raises(URLError):
        urllib.request.urlopen(f"{url}_stcore/health")


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux", reason="other systems do not tell a process that its parent has died"
)
def test_the_server_ends_with_a_command_that_is_killed(tmp_path: Path) -> None:
    process = start(tmp_path, "app", "--no-browser")
    url = address(process)
    process.kill()
    process.wait(30)
    wait_until(lambda: not answers(f"{url}_stcore/health"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc says which signals a process ignores")
def test_under_nohup_a_hangup_stays_ignored_and_sigterm_ends_the_command(tmp_path: Path) -> None:
    process = start(tmp_path, "app", "--no-browser", before=("nohup",))
    address(process)
    status = Path(f"/proc/{process.pid}/status").read_text()
    ignored = re.search(r"^SigIgn:\s*([0-9a-f]+)$", status, re.MULTILINE)
    assert ignored is not None and int(ignored[1], 16) & 1 << signal.SIGHUP - 1
    process.terminate()
    assert process.wait(30) == 0


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except (URLError, OSError):
        return False


@pytest.mark.slow
def test_a_trace_is_opened_by_its_permalink(tmp_path: Path) -> None:
    process = start(tmp_path, "app", "--no-browser", "--trace", str(RECORDED / "swap.itrace"), "--step", "31")
    url = address(process)
    process.send_signal(signal.SIGINT)
    process.wait(30)
    assert re.search(r"/step\?run=file%3A.*swap\.itrace&step=31$", url)


def test_a_file_that_is_not_there_is_refused_before_anything_starts() -> None:
    result = CliRunner().invoke(app, ["app", "--trace", "/nowhere/run.itrace"])
    assert result.exit_code == terminal.USAGE
    assert "no file /nowhere/run.itrace" in result.stderr and "prep trace record" in result.stderr


def test_without_its_libraries_the_way_to_them_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.cli.terminal.find_spec", lambda name: None)
    for words in (["app"], ["demo", "--open"]):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == terminal.ENVIRONMENT
        assert "streamlit" in result.stderr and "pip install" in result.stderr


@pytest.mark.slow
def test_the_demo_is_recorded_and_opened_where_memory_runs_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start(tmp_path, "demo", "--fast", "--open")
    url = address(process)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    monkeypatch.setenv("PREP_HOME", str(tmp_path))
    found = re.search(r"/step\?run=mine%3Ademo&step=(\d+)$", url)
    assert found is not None
    assert open_run("mine:demo").reader(0).step(int(found[1])).preempted


@pytest.mark.slow
def test_nothing_of_the_workbench_imports_torch() -> None:
    """Every page's module in a fresh process, as the server imports them."""
    program = (
        "import sys; from importlib import import_module; from app.debugger.main import PAGES\n"
        "for entry in PAGES.values(): import_module(entry.module)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )

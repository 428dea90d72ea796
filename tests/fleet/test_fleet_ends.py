"""However a fleet ends, no process, port or file of it is left. And how other processes find it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from app.cli.main import app
from engine.config import ConfigError
from engine.fleet.folder import Address, ask, choose, find, running, state_folder
from engine.server.listen import listen
from prep_common.child_process import ROOT
from tests.waiting import has_ended, wait_until

PROGRAM = """
import sys
from engine.fleet.config import FleetSettings
from engine.fleet.run import serve
serve(FleetSettings(name="tiny", port=0, replicas=2, drain_timeout_s=5), print, module="tests.fleet.tiny_server")
"""


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A fleet in a process of its own, with two replicas that are ready."""
    monkeypatch.setenv("PREP_HOME", str(tmp_path))
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        wait_until(lambda: find("tiny"))
        wait_until(
            lambda: (
                [replica["state"] for replica in ask(choose("tiny"), "status")["replicas"]] == ["ready"] * 2
            )
        )
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL, "down"])
def test_nothing_is_left_after_any_end(
    process: subprocess.Popen[bytes], tmp_path: Path, how: signal.Signals | str
) -> None:
    address = choose(None)
    urls = [address.url, *(replica["url"] for replica in ask(address, "status")["replicas"])]
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 3 and (tmp_path / "fleets/tiny/r1.log").exists()
    assert (tmp_path / "fleets/tiny/fleet.json").stat().st_mode & 0o077 == 0, "the key is the user's alone"
    if isinstance(how, str):
        done = CliRunner().invoke(app, ["fleet", how])
        assert (done.exit_code, done.stdout) == (0, "tiny has ended\n")
    else:
        process.send_signal(how)
    assert process.wait(30) == (-9 if how == signal.SIGKILL else 0)
    wait_until(lambda: all(has_ended(each) for each in family))
    wait_until(lambda: not (tmp_path / "fleets/tiny").exists())
    for url in urls:
        listen("127.0.0.1", int(url.rpartition(":")[2])).close()  # raises OSError if the port is taken
    with pytest.raises(ConfigError, match="no fleet 'tiny' runs; running: none"):
        choose("tiny")


def test_a_roll_says_that_it_goes_on_and_how_to_follow_it(process: subprocess.Popen[bytes]) -> None:
    done = CliRunner().invoke(app, ["fleet", "roll", "tiny"])
    assert (
        "the fleet replaces r1 and r2 in the background" in done.stdout and "prep fleet status" in done.stderr
    )
    assert "a roll is under way" in CliRunner().invoke(app, ["fleet", "status"]).stdout
    wait_until(lambda: not ask(choose("tiny"), "status")["rolling"])
    shown = CliRunner().invoke(app, ["fleet", "status"]).stdout
    assert "a roll is under way" not in shown and shown.splitlines()[-1].split()[2:] == ["roll", "done"]


def test_two_fleets_of_one_name_are_refused_and_several_must_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREP_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="running fleets: none; prep fleet up"):
        choose(None)
    with state_folder("a", "http://127.0.0.1:1", "k"), state_folder("b", "http://127.0.0.1:1", "k"):
        assert list(running()) == ["a", "b"]
        with pytest.raises(ConfigError, match="fleet 'a' runs already"), state_folder("a", "", ""):
            pass
        with pytest.raises(ConfigError, match="a, b; name one"):
            choose(None)
        with pytest.raises(ConfigError, match="does not answer"):
            ask(choose("a"), "status")
    wait_until(lambda: not running())


def test_what_a_dead_fleet_has_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREP_HOME", str(tmp_path))
    folder = tmp_path / "fleets/old"
    folder.mkdir(parents=True)
    later = Address(
        os.getpid(), 1.0, "http://127.0.0.1:1", "k"
    )  # a process with that id, started at another time
    (folder / "fleet.json").write_text(json.dumps(vars(later)))
    assert find("old") is None and not folder.exists()

"""The commands that errors name after `next:` can be run in the state in which they are named."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli.main import app

NEXT = re.compile(r"^next: (prep .+?)(?: {2,}.*)?$", re.MULTILINE)
PLAIN = [
    "plan",
    "mock resume",
    "mock report",
    "mock report zzz",
    "lesson check 07.1",
    "lab check block-manager",
    "zoo formats nothing",
    "serve shop --lora-modules wrong",
    "kernels check nothing",
    "kernels explain nothing",
    "kernels bench nothing",
]
"""Wrong commands, and right ones that find nothing."""
ENDS_OK = (0, 1)
"""1: a check that fails, which is what it was asked for."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PREP_LESSONS", str(tmp_path / "lessons"))
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("words", PLAIN)
def test_the_command_of_a_hint_runs(words: str) -> None:
    done = CliRunner().invoke(app, shlex.split(words))
    hints = NEXT.findall(done.output)
    assert done.exit_code != 0 and hints, done.output
    for hint in hints:
        for command in hint.split(" && "):
            again = CliRunner().invoke(app, shlex.split(command)[1:])
            assert again.exit_code in ENDS_OK, f"{command}\n{again.output}"


def test_the_hint_for_an_hour_runs_once_there_is_a_date() -> None:
    assert CliRunner().invoke(app, ["plan", "--interview", "21"]).exit_code == 0
    done = CliRunner().invoke(app, ["plan", "--ics", "plan.ics", "--at", "25:00"])
    [hint] = NEXT.findall(done.output)
    assert done.exit_code == 2 and CliRunner().invoke(app, shlex.split(hint)[1:]).exit_code == 0

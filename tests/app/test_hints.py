"""The commands that errors name after `next:` can be run in the state in which they are named."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.cli.main import app
from app.cli.terminal import INTERRUPTED

ROOT = Path(__file__).resolve().parents[2]
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


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("quiz memory", "prep quiz --topic memory"),
        ("quiz SRE", "prep quiz --role sre"),
        ("quiz memory.paged_attention", "prep quiz --question memory.paged_attention"),
        ("quiz nothing", "prep quiz --help"),
        ("claims s0-01", "prep claims show S0-01"),
        ("drill d4", "prep drill start D04"),
        ("bank memory.paged_attention", "prep bank preview memory.paged_attention"),
        ("lab swap-tier", "prep lab new swap-tier"),
    ],
)
def test_a_name_in_place_of_a_command_or_option_is_answered_with_what_takes_it(
    words: str, meant: str
) -> None:
    done = CliRunner().invoke(app, words.split())
    assert done.exit_code == 2
    assert meant in done.stderr


def test_the_hint_for_an_hour_runs_once_there_is_a_date() -> None:
    assert CliRunner().invoke(app, ["plan", "--interview", "21"]).exit_code == 0
    done = CliRunner().invoke(app, ["plan", "--ics", "plan.ics", "--at", "25:00"])
    [hint] = NEXT.findall(done.output)
    assert done.exit_code == 2 and CliRunner().invoke(app, shlex.split(hint)[1:]).exit_code == 0


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("--hours 5 --role sre --all", "--interview 21 --hours 5.0 --role sre --all --ics plan.ics"),
        ("--interview 9 --ics 'my plan.ics' --json", "--interview 9 --ics 'my plan.ics' --json"),
        ("--markdown plan.md", "--interview 21 --ics plan.ics --markdown plan.md"),
    ],
)
def test_the_hint_for_an_hour_keeps_the_options_that_were_given(given: str, kept: str) -> None:
    done = CliRunner().invoke(app, ["plan", *shlex.split(given), "--at", "25:00"])
    [hint] = NEXT.findall(done.output)
    assert hint == f"prep plan {kept} --at 19:00"
    assert CliRunner().invoke(app, shlex.split(hint)[1:]).exit_code == 0


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("lesson 6", "prep lesson open 06"),
        ("lesson 06.2", "prep lesson open 06"),
        ("lab BLOCK_MANAGER", "prep lab new block-manager"),
        ("cards vllm", "prep cards show engine.vllm"),
        ("experiments batching.batch_window", "prep experiments show batching.batch_window"),
        ("kernels rope", "prep kernels explain rotary_embedding"),
    ],
)
def test_a_name_in_place_of_a_command_suggests_the_command_that_takes_it(words: str, meant: str) -> None:
    done = CliRunner().invoke(app, words.split())
    assert done.exit_code == 2 and done.output.endswith(f"; did you mean '{meant}'?\n"), done.output


@pytest.mark.parametrize("words", ["lesson opn", "lab wathc", "cards shw", "experiments lst", "kernels chek"])
def test_a_misspelt_command_is_still_recognised(words: str) -> None:
    done = CliRunner().invoke(app, words.split())
    assert done.exit_code == 2 and "No such command" in done.output and "Did you mean" in done.output


def test_the_hint_for_an_hour_names_a_missing_date_too_and_runs() -> None:
    done = CliRunner().invoke(app, ["plan", "--ics", "plan.ics", "--at", "25:00"])
    [hint] = NEXT.findall(done.output)
    assert done.exit_code == 2 and "No interview date is set either" in done.output
    assert CliRunner().invoke(app, shlex.split(hint)[1:]).exit_code == 0


LONG = [
    "zoo train nothing",
    "zoo train shop --resume",
    "kernels bench rms_norm --write",
    "bench fleet nothing",
    "bench peers --write --rounds 1",
    "sim check --saved",
]
"""Wrong commands whose hints name a command of minutes."""


@pytest.mark.slow
@pytest.mark.parametrize("words", LONG)
def test_the_long_command_of_a_hint_begins_and_can_be_interrupted(words: str, tmp_path: Path) -> None:
    wrong = CliRunner().invoke(app, shlex.split(words))
    [hint] = NEXT.findall(wrong.output)
    assert wrong.exit_code == 2, wrong.output
    command = [sys.executable, "-m", "app.cli.main", *shlex.split(hint)[1:]]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, text=True, env=environment, cwd=tmp_path, **pipes) as running:
        assert running.stdout is not None
        first = running.stdout.readline()
        running.send_signal(signal.SIGINT)
        rest = running.stdout.read()
    assert first and not first.startswith(("error", "Usage")), first + rest
    assert running.returncode == INTERRUPTED and "interrupted" in rest, first + rest

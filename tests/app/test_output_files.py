"""A command that cannot write its output file says so before it works for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli.main import app

COMMANDS = [
    "demo --svg",
    "progress --html",
    "plan --interview 21 --ics",
    "plan --interview 21 --markdown",
    "mock report --html",
    "mock peer --host --out",
    "capacity chat_startup --svg",
    "diagnose http://127.0.0.1:1 --save",
    "sim autoscale --svg",
    "sim fleet --routes",
    "run batching.static_vs_continuous --trace",
    "run batching.static_vs_continuous --plot",
]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_path_below_a_file_is_refused_before_the_work(tmp_path: Path, command: str) -> None:
    (tmp_path / "note").write_text("kept")
    done = CliRunner().invoke(app, [*command.split(), "note/out"])
    assert done.exit_code == 3
    assert done.stderr == "error: cannot write note/out: note is not a folder\nnext: use another path\n"
    assert not done.stdout and (tmp_path / "note").read_text() == "kept"


def test_a_folder_in_the_place_of_the_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    done = CliRunner().invoke(app, ["demo", "--svg", "out"])
    assert done.exit_code == 3 and "cannot write out: out is a folder" in done.stderr


def test_a_pipe_that_a_shell_names_by_its_descriptor_is_written() -> None:
    """No file can be made in the folder of such a pipe, nor of a device, except by root."""
    reader, writer = os.pipe()
    done = CliRunner().invoke(app, ["plan", "--interview", "21", "--ics", f"/dev/fd/{writer}"])
    os.close(writer)
    with open(reader, encoding="utf-8") as calendar:
        assert calendar.read().startswith("BEGIN:VCALENDAR")
    assert done.exit_code == 0


def test_the_folder_of_the_file_that_a_link_names_is_made(tmp_path: Path) -> None:
    (tmp_path / "link.ics").symlink_to("new/plan.ics")
    done = CliRunner().invoke(app, ["plan", "--interview", "0", "--ics", "link.ics"])
    assert done.exit_code != 0 and not (tmp_path / "new").exists()
    done = CliRunner().invoke(app, ["plan", "--interview", "21", "--ics", "link.ics"])
    assert done.exit_code == 0 and (tmp_path / "new" / "plan.ics").is_file()


@pytest.mark.parametrize(
    ("name", "file", "says"),
    [
        ("batching.static_vs_continuous", "a.svg", "has no chart"),
        ("scheduling.load_sweep", "a.gif", "writes .svg, .png or .json"),
    ],
)
def test_a_chart_that_cannot_be_drawn_is_refused_before_the_work(
    name: str, file: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quizzes.experiments.runner.Runner.run", lambda *_, **__: pytest.fail("it ran"))
    done = CliRunner().invoke(app, ["run", name, "--plot", file])
    assert done.exit_code == 2 and says in done.stderr


def test_a_missing_folder_is_made(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["plan", "--interview", "21", "--ics", "new/plan.ics"])
    assert done.exit_code == 0 and (tmp_path / "new" / "plan.ics").is_file()


@pytest.mark.parametrize(
    "command",
    [
        "capacity nosuch --svg",
        "mock report nosuch --html",
        "run batching.static_vs_continuous --set slots=0 --trace",
    ],
)
def test_a_command_that_fails_leaves_no_folder_behind(tmp_path: Path, command: str) -> None:
    (tmp_path / "kept").mkdir()
    done = CliRunner().invoke(app, [*command.split(), "kept/new/deep/out"])
    assert done.exit_code not in (0, 3) and not list((tmp_path / "kept").iterdir())


def test_a_cheat_sheet_below_a_file_is_refused_in_the_same_words(tmp_path: Path) -> None:
    (tmp_path / "note").write_text("kept")
    done = CliRunner().invoke(app, ["cards", "export", "--pdf", "note/out.pdf"])
    assert done.exit_code == 3 and "cannot write note/out.pdf: note is not a folder" in done.stderr

"""`prep test` runs the linters and passes what it is given to pytest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli import test as command
from app.cli.main import app


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, list[str]]]:
    """Commands that would have run; everything but what FAILING names succeeds."""
    calls: list[tuple[str, list[str]]] = []

    def run(name: str, arguments: list[str], *, seed: int | None = None) -> int:
        calls.append((name, arguments))
        SEEDS.append(seed)
        return int(name in FAILING)

    FAILING.clear()
    SEEDS.clear()
    monkeypatch.setattr(command, "LAST_GREEN", tmp_path / "last_green.json")
    monkeypatch.setattr(command, "commit", lambda: COMMIT)
    monkeypatch.setattr(command, "run", run)
    return calls


COMMIT = "0" * 40
FAILING: set[str] = set()
SEEDS: list[int | None] = []


def test_linters_come_first_and_pytest_last(ran: list[tuple[str, list[str]]]) -> None:
    assert CliRunner().invoke(app, ["test"]).exit_code == 0
    assert [name for name, _ in ran] == [
        "ruff check",
        "ruff format",
        "floors (import-linter)",
        "mypy",
        "pytest",
    ]


@pytest.mark.parametrize("failing", ["ruff format", "mypy", "pytest"])
def test_any_failure_is_the_commands_failure(ran: list[tuple[str, list[str]]], failing: str) -> None:
    FAILING.add(failing)
    assert CliRunner().invoke(app, ["test"]).exit_code == 1
    assert ran[-1][0] == "pytest", "a linter's complaint does not keep the tests from running"


def test_arguments_go_to_pytest(ran: list[tuple[str, list[str]]]) -> None:
    CliRunner().invoke(app, ["test", "--no-lint", "--all", "tests/core", "-k", "preempt", "-n", "1"])
    ((_, arguments),) = ran
    assert arguments[-5:] == ["tests/core", "-k", "preempt", "-n", "1"]
    assert "slow or not slow" in arguments
    assert arguments.count("-n") == 1, "the caller's choice of processes stands"


def test_the_fast_tier_leaves_out_mypy_and_slower_tests(ran: list[tuple[str, list[str]]]) -> None:
    assert CliRunner().invoke(app, ["test", "--fast"]).exit_code == 0
    assert "mypy" not in [name for name, _ in ran]
    [(_, arguments)] = [call for call in ran if call[0] == "pytest"]
    assert ["-m", "fast"] in [arguments[i : i + 2] for i in range(len(arguments))]


def test_tiers_exclude_each_other() -> None:
    for options in (["--fast", "--all"], ["--browser", "--all"], ["--seed", "3"]):
        assert CliRunner().invoke(app, ["test", *options]).exit_code == 2, options


def mark(ran: list[tuple[str, list[str]]]) -> str:
    (arguments,) = [arguments for name, arguments in ran if name == "pytest"]
    return arguments[arguments.index("-m", 3) + 1]


def test_the_push_tier_runs_slow_tests_that_a_change_reaches_and_ci_those_in_a_browser_too(
    ran: list[tuple[str, list[str]]],
) -> None:
    CliRunner().invoke(app, ["test", "--no-lint"])
    assert mark(ran) == "(not slow or reached) and not browser"
    ran.clear()
    CliRunner().invoke(app, ["test", "--no-lint", "--browser"])
    assert mark(ran) == "not slow or reached"


def test_a_green_run_of_everything_is_recorded_with_the_seed_that_repeats_it(
    ran: list[tuple[str, list[str]]],
) -> None:
    CliRunner().invoke(app, ["test", "--all"])
    first = json.loads(command.LAST_GREEN.read_text())
    assert first["commit"] == COMMIT and first["seed"] == SEEDS[-1]
    CliRunner().invoke(app, ["test", "--all", "--seed", "7"])
    assert json.loads(command.LAST_GREEN.read_text())["seed"] == SEEDS[-1] == 7
    assert set(SEEDS[:4]) == {None}, "linters have no seed"


@pytest.mark.parametrize(
    ("options", "failing", "commits"),
    [
        ([], "pytest", [COMMIT, COMMIT]),
        ([], "mypy", [COMMIT, COMMIT]),
        (["--no-lint"], "", [COMMIT, COMMIT]),
        (["tests/core"], "", [COMMIT, COMMIT]),
        ([], "", [None, None]),
        ([], "", [COMMIT, None]),
    ],
    ids="red lint no_lint part uncommitted edited_meanwhile".split(),
)
def test_only_a_whole_green_run_of_a_commit_is_recorded(
    ran: list[tuple[str, list[str]]],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    failing: str,
    commits: list[str | None],
) -> None:
    FAILING.add(failing)
    states = iter(commits)
    monkeypatch.setattr(command, "commit", lambda: next(states))
    CliRunner().invoke(app, ["test", "--all", *options])
    assert not command.LAST_GREEN.exists()


def test_a_folder_without_history_has_no_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(command, "ROOT", tmp_path)
    assert command.commit() is None


def test_missing_tools_are_named_with_the_command_that_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "TOOLS", ("pytest", "no_such_tool"))
    result = CliRunner().invoke(app, ["test"])
    assert result.exit_code == 3
    assert "no_such_tool" in result.stderr and "./prep test" in result.stderr


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["nope"], "prep test tests/app"),
        (["sampler"], "prep test tests/"),
        (["tests/core/test_schedular.py"], "tests/core/test_scheduler.py"),
        (["test_linters_come_first"], "prep test -k test_linters_come_first_and_pytest_last"),
        (
            ["-x", "tests/app/test_test.py::test_any_failure_is_the_command"],
            "-k test_any_failure_is_the_commands",
        ),
        (["tests/core::test_any"], "prep test"),
    ],
)
def test_a_name_that_is_no_test_is_refused_before_the_linters(
    ran: list[tuple[str, list[str]]], words: list[str], hint: str
) -> None:
    result = CliRunner().invoke(app, ["test", *words])
    assert result.exit_code == 2 and not ran
    assert hint in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["tests/core", "-k", "nope"],
        ["-n", "1", "tests/app/test_test.py::test_any[x]"],
        ["tests/core/test_blocks.py::TestFreeQueue::runTest"],
        ["-x", "@tests.txt"],
        ["-o", "addopts=-q", "--deselect", "no/test.py::test_x", "--ignore=no"],
    ],
)
def test_values_of_options_and_tests_that_exist_are_not_refused(
    ran: list[tuple[str, list[str]]], words: list[str]
) -> None:
    words = [word.replace("test_any[x]", "test_any_failure_is_the_commands_failure[mypy]") for word in words]
    assert CliRunner().invoke(app, ["test", "--no-lint", *words]).exit_code == 0
    assert ran[-1][1][-len(words) :] == words

"""`prep test` runs the linters and passes what it is given to pytest."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from app.cli import test as command
from app.cli.main import app


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """Commands that would have run; everything but what FAILING names succeeds."""
    calls: list[tuple[str, list[str]]] = []

    def run(name: str, arguments: list[str]) -> int:
        calls.append((name, arguments))
        return int(name in FAILING)

    FAILING.clear()
    monkeypatch.setattr(command, "run", run)
    return calls


FAILING: set[str] = set()


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
    CliRunner().invoke(app, ["test", "--no-lint", "--slow", "tests/core", "-k", "preempt", "-n", "1"])
    ((_, arguments),) = ran
    assert arguments[-5:] == ["tests/core", "-k", "preempt", "-n", "1"]
    assert "slow or not slow" in arguments
    assert arguments.count("-n") == 1, "the caller's choice of processes stands"


def test_the_fast_tier_leaves_out_mypy_and_slower_tests(ran: list[tuple[str, list[str]]]) -> None:
    assert CliRunner().invoke(app, ["test", "--fast"]).exit_code == 0
    assert "mypy" not in [name for name, _ in ran]
    [(_, arguments)] = [call for call in ran if call[0] == "pytest"]
    assert ["-m", "fast"] in [arguments[i : i + 2] for i in range(len(arguments))]
    assert CliRunner().invoke(app, ["test", "--fast", "--slow"]).exit_code == 2


def test_missing_tools_are_named_with_the_command_that_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "TOOLS", ("pytest", "no_such_tool"))
    result = CliRunner().invoke(app, ["test"])
    assert result.exit_code == 3
    assert "no_such_tool" in result.stderr and "./prep test" in result.stderr

"""Wrapped lines keep the indentation of their first line, on terminals and where COLUMNS is set."""

from __future__ import annotations

import io
import os

import pytest
from rich.padding import Padding
from rich.text import Text
from typer.testing import CliRunner

from app.cli import terminal
from app.cli.hanging import HangingConsole, Hung
from app.cli.main import app
from app.cli.quiz import showing


def lines_of(text: object, width: int) -> list[str]:
    console = HangingConsole(file=io.StringIO(), width=width, highlight=False)
    console.print(text)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("text", "second"),
    [
        ("  rule: true or false in every case", "  every case"),
        ("  eagle   drafts from the features of the target", "          features of the"),
        (" - a list item that needs two lines", "   two lines"),
        ("  a_name_as_long_as_most  its text", "  its text"),
        ("a paragraph has no indentation at all", "indentation at all"),
    ],
)
def test_a_wrapped_line_continues_below_its_text(text: str, second: str) -> None:
    lines = lines_of(text, 26)
    assert lines[1].startswith(second), lines
    assert max(map(len, lines)) <= 26
    assert " ".join(" ".join(lines).split()) == " ".join(text.split())


def test_markup_and_padding_keep_the_indentation() -> None:
    assert lines_of("  [bold]name[/]  [dim]a text that is wrapped[/]", 20) == [
        "  name  a text that",
        "        is wrapped",
    ]
    assert lines_of(Padding(Hung(Text("- one two three four")), (0, 0, 0, 1)), 12) == [
        " - one two",
        "   three",
        "   four",
    ]
    assert lines_of(showing.prose("- one two three four"), 12)[1].startswith("   three")


def test_characters_of_two_columns_count_twice() -> None:
    text = "  東京東京  text that is wrapped over lines"
    assert lines_of(text, 26) == ["  東京東京  text that is", "            wrapped over", "            lines"]
    assert lines_of("  東京東京東京  text that is wrapped", 26)[1] == "  is wrapped"


def test_a_pipe_wraps_only_where_columns_is_set(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    terminal.say("  word" * 60)
    assert capsys.readouterr().out.count("\n") == 1
    monkeypatch.setenv("COLUMNS", "40")
    terminal.say("word " * 60)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 40


NARROW = [
    "cards list",
    "claims show S0-01",
    "answer --list",
    "answer Q021",
    "lab",
    "plan --interview 21 --hours 5",
    "experiments list",
    "drill list",
    "today",
]


@pytest.mark.parametrize("command", NARROW)
def test_pages_have_forty_columns(command: str, tmp_path: object) -> None:
    environment = {"COLUMNS": "40", "PREP_HOME": str(tmp_path)}
    shown = CliRunner().invoke(app, command.split(), env={**os.environ, **environment}, input="q\n")
    assert shown.exit_code == 0
    assert [line for line in shown.stdout.splitlines() if len(line) > 40 and " q quit > " not in line] == []

"""Every command that reads a file says in one sentence what is wrong with it, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from app.cli import terminal
from app.cli.main import COMMANDS, app

URL = "http://127.0.0.1:9"
TEXTS = """
    lesson check 01 --file
    lab check block-manager --file
    start --script
    plan --script
    today --script
    quiz -n 1 --script
    mock start --script
    mock peer --join
    mock peer --mark
    drill start random --script
    claims vote --script
    generate shop -p x --json-schema
    gateway run
    gateway check
    fleet up
    adapter list --registry
    adapter promote a --registry
    adapter rollback a --registry
    zoo manifest shop --check
    zoo quantize shop --output {new} --calibration
    sim run --requests
    sim fleet --requests
    sim autoscale
    capacity
    load {url} --replay
    cache lint
    upgrade check -B {url} --golden
"""
"""Commands whose last word is the name of a text file."""
DATA = """
    diagnose {url} --baseline
    trace info
    trace why {file} r1
    trace verify
    trace export {file} -o {new}
    trace diff {file}
    trace fork {file} --set max_num_seqs=1
    state import
"""
"""Commands with a file that is not a text."""
ELSEWHERE = {
    "app --trace", "bench debugger --trace", "bench debugger --browser",  # refused by name before they are opened
    "lab submit-trace file", "adapter add folder", "adapter add --registry",  # after the lab, or the folder
    "site serve --folder",  # a folder: tests/packaging/test_site.py
    "review --script", "mock resume --script", "mock peer --script",  # read when there is something to answer
    "diagnose --request-log", "diagnose --server-log",  # bytes that are no text are replaced
    "serve --lora-registry",  # as `adapter list`, after the model
}  # fmt: skip
"""Files that other tests read."""
WRITTEN = (
    "svg html ics markdown anki pdf plot out output page table trace routes request_log save perfetto".split()
)
"""Names of options for files and folders that are written."""


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def parameters() -> Iterator[tuple[str, Any]]:
    """Yield every parameter of every command that is a path."""

    def walk(path: str, command: Any) -> Iterator[tuple[str, Any]]:
        for name, member in getattr(command, "commands", {}).items():
            yield from walk(f"{path} {name}", member)
        for param in command.params:
            if "Path" in str(param.type_descriptor.annotation):
                yield path, param

    for name, entry in COMMANDS.items():
        found = getattr(import_module(entry.module), name)
        found = found if isinstance(found, typer.Typer) else terminal.command_app(found)
        yield from walk(name, typer.main.get_command(found))


def test_every_file_that_a_command_reads_is_tried_here() -> None:
    tried = lines(TEXTS) + lines(DATA)
    for path, each in parameters():
        is_option = each.param_type_name == "option"
        name = each.opts[-1] if is_option else each.name
        if f"{path} {name}" in {*ELSEWHERE, "state export file"} or is_option and each.name in WRITTEN:
            continue
        words = [line for line in tried if line.startswith(path + " ") or line == path]
        assert any(not is_option or name in line.split() for line in words), (
            f"prep {path} {name} is not tried"
        )


def complaint(command: str, file: Path, tmp_path: Path) -> str:
    """Return what a command says of a file."""
    has_place = "{file}" in command
    words = command.format(url=URL, file=file, new=tmp_path / "new").split() + [str(file)] * (not has_place)
    if command.startswith("trace diff"):
        words.append(str(file))
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output and "Errno" not in result.stderr and "codec" not in result.stderr
    return " ".join(result.stderr.split())


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("command", lines(TEXTS))
def test_a_file_that_is_not_utf_8_is_refused_in_one_sentence(command: str, tmp_path: Path) -> None:
    file = tmp_path / "latin.yaml"
    file.write_bytes(b"caf\xe9: 1\n")
    said = complaint(command, file, tmp_path)
    if command != "cache lint":  # names the line
        assert "not text in UTF-8 (byte 3 is 0xe9); save it as UTF-8" in said
    else:
        assert "line 1: the line is not JSON in UTF-8; expected" in said


@pytest.mark.parametrize("command", lines(TEXTS + DATA))
def test_a_file_that_does_not_exist_is_refused_with_what_there_is(command: str, tmp_path: Path) -> None:
    (tmp_path / "right.yaml").touch()
    said = complaint(command, tmp_path / "rigt.yaml", tmp_path)
    if command.startswith("adapter"):
        assert "prep adapter add" in said
    elif command in ("capacity", "sim autoscale"):
        assert "examples: assistant_day" in said
    else:
        assert "it does not exist; did you mean" in said and "right.yaml'?" in said


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("adapter add a nope", "nope does not exist; name the folder of an adapter"),
        (
            "adapter promote nope",
            "adapters.json has no adapter 'nope'; it is empty; add one with: prep adapter",
        ),
        ("fleet up nope", "next: prep fleet up engine/fleet/example.yaml"),
        ("gateway check nope", "next: prep gateway check engine/gateway/example.yaml"),
        ("zoo manifest nope", "next: prep zoo list"),
        ("mock lint nope", "no scenario is called 'nope'; prep mock scenarios shows all ids"),
        ("bank list --covers nope", "next: prep bank list --covers Q021"),
        ("bench startup nope", "no model 'nope'; shipped: shop"),
        ("disagg nope", "no model 'nope'; shipped: shop"),
        ("sim fleet --num-requests 2 --link nope", "unknown link 'nope'; known:"),
        ("sim fleet --num-requests 2 --schedule nope", "next: --schedule 3600-7200:4"),
        ("zoo eval shop --reference nope -n 1", "next: prep zoo list"),
    ],
)
def test_an_unknown_name_is_refused_with_what_there_is(command: str, says: str) -> None:
    result = CliRunner().invoke(app, command.split())
    assert result.exit_code == 2 and says in " ".join(result.stderr.split()), result.output

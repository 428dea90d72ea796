"""Commands that pages and help texts show: all of them parse, and (slow) those of the pages run.

A page shows commands to run in fences that start with ```sh: one per line, a comment after two spaces. Two pages
also show some in the last column of a table. Other fences hold transcripts and templates.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import typer

from app.cli.main import COMMANDS, app
from tests.server.processes import start_server

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True).stdout.split()
)
SECONDS = 20
"""A command that takes longer is interrupted, and must end without a traceback."""
SOONER = 7
"""Seconds for commands that take longer than SECONDS on every machine."""
LONG = (
    "prep app",
    "prep serve",
    "prep load",
    "prep top",
    "prep bench throughput",
    "prep zoo train",
    "prep zoo eval shop-lora",
    "prep zoo quantize",
    "--gates",
)
HANDED_ON = re.compile(r"\.itrace\b")
"""In commands that write a file for a later one of the same page, or read it."""
ENDS = (0, 4, 130, -signal.SIGINT)
"""Exit codes of success, a failed check and an interrupt; the last when it meets the interpreter's own end."""
SERVER = "http://127.0.0.1:8000"
"""The server that a page has the reader start in another terminal."""
ELSEWHERE = (
    "git clone",
    "pip ",
    "pre-commit",
    "./prep test",
    "pytest",
    "python3 -m venv",
    "~/vllm",
    "--against vllm",
    "--against llama.cpp",
)
"""Installations, other tests, and what needs vLLM or llama.cpp."""


def commands(page: str) -> list[str]:
    """Commands of a page, in order, without comments."""
    text = (ROOT / page).read_text()
    found = []
    for fence in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        found += [re.split(r"  +|\s#\s", line.strip())[0] for line in fence.splitlines() if line.strip()]
    if page in ("README.md", "docs/features.md"):
        found += re.findall(r"\| `((?:\./)?prep [^`]+)` \|$", text, re.MULTILINE)
    return [command for command in found if not any(mark in command for mark in ELSEWHERE)]


ON_PAGES = [(page, command) for page in PAGES for command in commands(page)]


def examples(name: str) -> list[str]:
    """Example lines of the help pages of a command and its subcommands."""
    lines = []
    for texts in _help_texts(_command(name)):
        shown = re.split(r"Examples?:", texts, maxsplit=1)[1:]
        for line in "".join(shown).splitlines():
            if match := re.search(r"(?:^|\| |\s|\w=\S+ )(prep [a-z][^|<>]*?)(?:  .*| [|<>].*)?$", line):
                lines.append(match[1])
    return lines


def test_examples_are_found_in_every_form_that_help_pages_use(monkeypatch: pytest.MonkeyPatch) -> None:
    page = """Measure.

    Examples:
      prep bench x --json        a comment
      echo hello | prep generate a
      OMP_NUM_THREADS=1 prep sim check shop
      prep quiz x < answers.txt
    """
    monkeypatch.setitem(
        globals(), "_help_texts", lambda command: [page, "Run.\n\nExample: prep doctor --json"]
    )
    monkeypatch.setitem(globals(), "_command", lambda name: None)
    expected = ["bench x --json", "generate a", "sim check shop", "quiz x", "doctor --json"]
    assert examples("any") == [f"prep {line}" for line in expected]


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_with_a_comment_fit_a_terminal(name: str) -> None:
    for text in _help_texts(_command(name)):
        shown = re.split(r"Examples?:", text, maxsplit=1)[1:]
        lines = [line for line in "".join(shown).splitlines() if re.search(r"prep .*\S  +\S", line)]
        assert not [line for line in lines if len(line.strip()) > 80 - len("    ")]


def _command(name: str) -> Any:
    group = typer.main.get_command(app)
    context = group.make_context("prep", [name, "--help"], resilient_parsing=True)
    return group.resolve_command(context, [name])[1]


def _help_texts(command: Any) -> list[str]:
    own = [command.help or ""]
    return own + [
        text for member in getattr(command, "commands", {}).values() for text in _help_texts(member)
    ]


def parse(line: str) -> None:
    """Parse a `prep` command to its end without running it. Raises a usage error of click's."""
    words = [word for word in shlex.split(line) if not re.match(r"PREP_\w+=", word)][1:]
    command: Any = typer.main.get_command(app)
    while True:
        try:
            context = command.make_context("prep", list(words))
        except typer.Exit:  # --help
            return
        if not hasattr(command, "resolve_command"):
            return
        rest = [*getattr(context, "_protected_args", []), *context.args]
        if not rest:
            return
        _, command, words = command.resolve_command(context, rest)


def test_pages_show_commands() -> None:
    assert len(ON_PAGES) >= 40


@pytest.mark.parametrize(("page", "command"), ON_PAGES)
def test_commands_on_pages_parse(page: str, command: str) -> None:
    if re.match(r"(PREP_\w+=\S+ )*(\./)?prep ", command):
        parse(command)


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_of_help_pages_parse(name: str) -> None:
    for line in examples(name):
        try:
            parse(line)
        except Exception as error:
            if str(getattr(error, "message", "")).endswith("does not exist."):
                continue  # a file that an earlier example writes
            raise AssertionError(f"{line}: {getattr(error, 'message', error)}") from error


def to_run(page: str) -> list[str]:
    """Commands of a page that no page with more commands shows, too: those run there, in the same way."""
    own = commands(page)
    larger = [other for other in PAGES if len(commands(other)) > len(own)]
    elsewhere = {command.removeprefix("./") for other in larger for command in commands(other)}
    listed = dict.fromkeys(command.removeprefix("./") for command in own)
    return [command for command in listed if command not in elsewhere or HANDED_ON.search(command)]


def run(command: str, cwd: Path, home: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """A command as a user types it; `./prep` and `prep` are this interpreter's. Interrupted after SECONDS."""
    prep = f"{shlex.quote(sys.executable)} -m app.cli.main"
    line = re.sub(r"(^|(?<=\| )|(?<=& ))(\./)?prep (?=[a-z-])", f"{prep} ", command)
    line = re.sub(r"^python ", f"{shlex.quote(sys.executable)} ", line)
    environment = {
        **os.environ,
        "PREP_HOME": str(home),
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "100",
        "BROWSER": "true",
    }
    process = subprocess.Popen(
        ["sh", "-c", f"exec {line}" if "|" not in line else line],
        cwd=cwd, env=environment, text=True, start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        stdout, stderr = process.communicate(
            stdin, timeout=SOONER if any(word in command for word in LONG) else SECONDS
        )
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if to_run(page)])
def test_commands_on_pages_run(page: str, tmp_path: Path) -> None:
    """In the order of the page, in one folder: a later command may read what an earlier one wrote."""
    for name in ("docs", "tests", "app", "engine", "kernels", "quizzes", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    failed = []
    listed = to_run(page)
    with ExitStack() as stack:
        if any(SERVER in command for command in listed):
            url = start_server(stack, tmp_path).url
            listed = [command.replace(SERVER, url) for command in listed]
        for command in listed:
            ended = run(command, tmp_path, tmp_path / "home")
            # Python itself shows where it was interrupted; its errors end with 1.
            is_torn = "Traceback" in ended.stderr and not command.startswith("python ")
            if ended.returncode not in ENDS or is_torn:
                failed.append(
                    f"$ {command}\nexit code {ended.returncode}\n{ended.stdout[-600:]}{ended.stderr[-1200:]}"
                )
    assert not failed, "\n\n".join(failed)


@pytest.mark.slow
def test_the_transcript_in_the_readme_is_what_the_quiz_prints(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    transcript = next(fence for fence in readme.split("```") if "committed. Running" in fence)
    replies = re.findall(r" > (\S+)$", transcript, re.MULTILINE)
    (tmp_path / "replies.txt").write_text("\n".join([*replies, "q"]) + "\n")
    [command] = re.findall(r"`(\./prep quiz --question [^`]+)`", readme)
    shown = run(f"{command} --script replies.txt", tmp_path, tmp_path / "home").stdout
    table = [line.strip() for line in transcript.splitlines() if line.startswith(" │")]
    assert len(table) == 3
    for row in table:
        assert row in shown, shown


@pytest.mark.slow
def test_the_python_example_in_the_readme_prints_what_its_comment_says(tmp_path: Path) -> None:
    snippet = (ROOT / "README.md").read_text().split("```python\n")[1].split("```")[0]
    [promised] = re.findall(r"print\(.*\)  # (.*)", snippet)
    program = tmp_path / "example.py"
    program.write_text(snippet)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True)
    assert ended.stdout.strip() == promised, ended.stderr

"""`prep test`: linters, floors, types, then pytest, whose summary line comes last.

`./prep test` installs the tools first; inside another environment: `pip install -e '.[test]'`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from app.cli import terminal

app = terminal.command_app()

ROOT = Path(__file__).resolve().parents[2]
TOOLS = (
    "pytest",
    "xdist",
    "hypothesis",
    "transformers",
    "peft",
    "jsonschema",
    "streamlit",
    "playwright",
    "ruff",
    "importlinter",
    "mypy",
    "yaml",
)
MAX_WORKERS = 4  # each holds torch and a model: more would cost memory before it saves time


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def test(
    ctx: typer.Context,
    slow: Annotated[bool, typer.Option("--slow", help="Also the tests that take minutes.")] = False,
    lint: Annotated[bool, typer.Option(help="Run ruff, the import floors and mypy first.")] = True,
) -> None:
    """Run the linters and the tests. Other arguments go to pytest.

    \b
    Examples:
      prep test                                     everything but the slow tests
      prep test --slow                              everything
      prep test --no-lint tests/core -k preempt     some of them, at once
    """
    missing = [name for name in TOOLS if find_spec(name) is None]
    if missing or not (ROOT / "tests").is_dir():
        raise terminal.Problem(
            f"the test tools are not installed here: {', '.join(missing)}"
            if missing
            else f"no tests in {ROOT}",
            next_step="./prep test   (installs them)   or   pip install -e '.[test]'",
            code=terminal.ENVIRONMENT,
        )
    failed = run_linters() if lint else []
    arguments = ["-q", *(["-m", "slow or not slow"] if slow else []), *workers(ctx.args), *ctx.args]
    status = run("pytest", [sys.executable, "-m", "pytest", *arguments])
    if failed:
        # After pytest's summary would hide it from tools that read the last line: on stderr.
        terminal.tell_error(f"failed before the tests: {', '.join(failed)}", "scroll up to the first of them")
    raise typer.Exit(terminal.CHECKS_FAILED if failed or status else 0)


def run_linters() -> list[str]:
    """Run them all, so that one report names everything; returns the names of those that failed."""
    python = [sys.executable, "-m"]
    checks = {
        "ruff check": [*python, "ruff", "check", "."],
        "ruff format": [*python, "ruff", "format", "--check", "."],
        "floors (import-linter)": [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command as run; run()",
        ],
        "mypy engine/core": [*python, "mypy"],
    }
    return [name for name, command in checks.items() if run(name, command) != 0]


def workers(arguments: list[str]) -> list[str]:
    """Spread over processes unless the caller chose, or runs a debugger that needs the terminal."""
    chosen = any(argument.startswith(("-n", "--numprocesses", "--pdb", "-p")) for argument in arguments)
    count = min(os.cpu_count() or 1, MAX_WORKERS)
    return [] if chosen or count == 1 else ["-n", str(count), "--dist", "worksteal"]


def run(name: str, command: list[str]) -> int:
    print(f"== {name}", flush=True)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
    }
    return subprocess.run(command, cwd=ROOT, env=environment).returncode

"""`prep test`: linters, import floors, types, then pytest, whose summary line comes last.

`./prep test` installs the tools first. In another environment: `pip install -e '.[test]'`.
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
from app.cli.options import option

ROOT = Path(__file__).resolve().parents[2]
TOOLS = tuple(
    "pytest xdist pytest_rerunfailures hypothesis transformers peft jsonschema streamlit playwright "
    "ruff importlinter mypy yaml".split()
)
MAX_WORKERS = 4  # each holds torch and a model: more would exhaust memory before they save time


@terminal.context(allow_extra_args=True, ignore_unknown_options=True)
def test(
    ctx: typer.Context,
    fast: Annotated[bool, option("Only the fast tier: under a minute.", "--fast")] = False,
    slow: Annotated[bool, option("Also the slow tier: about 30 minutes in all.", "--slow")] = False,
    lint: Annotated[bool, option("Run ruff, import-linter and mypy first.")] = True,
) -> None:
    """Run the linters and the tests. Other arguments go to pytest.

    \b
    Examples:
      prep test                                     the default tier, under 6 minutes on two cores
      prep test --fast                              before a commit: without mypy, under a minute
      prep test --slow                              all tiers
      prep test --no-lint tests/core -k preempt     selected tests, without linters
    """
    if fast and slow:
        raise terminal.Problem("--fast and --slow exclude each other", "prep test --fast")
    missing = [name for name in TOOLS if find_spec(name) is None]
    if missing or not (ROOT / "tests").is_dir():
        tools = f"the test tools are not installed here: {', '.join(missing)}"
        raise terminal.Problem(
            tools if missing else f"no tests in {ROOT}",
            "./prep test   (installs them)   or   pip install -e '.[test]'",
            code=terminal.ENVIRONMENT,
        )
    failed = run_linters(types=not fast) if lint else []
    tier = ["-m", "fast"] if fast else ["-m", "slow or not slow"] if slow else []
    arguments = ["-q", "--durations=10", *tier, *workers(ctx.args), *ctx.args]
    status = run("pytest", [sys.executable, "-m", "pytest", *arguments])
    if failed:
        # On stderr: pytest's summary must stay the last line of stdout, which tools read.
        terminal.tell_error(f"failed before the tests: {', '.join(failed)}", "scroll up to the first of them")
    raise typer.Exit(terminal.CHECKS_FAILED if failed or status else 0)


def run_linters(*, types: bool = True) -> list[str]:
    """Run all linters, with mypy if `types`, and return the names of those that failed."""
    python = [sys.executable, "-m"]
    floors = "from importlinter.cli import lint_imports_command as run; run()"
    checks = {
        "ruff check": [*python, "ruff", "check", "."],
        "ruff format": [*python, "ruff", "format", "--check", "."],
        "floors (import-linter)": [sys.executable, "-c", floors],
    }
    if types:
        checks["mypy"] = [*python, "mypy"]
    return [name for name, command in checks.items() if run(name, command) != 0]


def workers(arguments: list[str]) -> list[str]:
    """Return the options that spread tests over processes, unless the caller chose or runs a debugger."""
    chosen = any(argument.startswith(("-n", "--numprocesses", "--pdb", "-p")) for argument in arguments)
    count = min(os.cpu_count() or 1, MAX_WORKERS)
    return [] if chosen or count == 1 else ["-n", str(count), "--dist", "worksteal"]


def run(name: str, command: list[str]) -> int:
    print(f"== {name}", flush=True)
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    # Container images set it; without byte code each of the hundreds of child processes compiles prep again.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return subprocess.run(command, cwd=ROOT, env=environment).returncode

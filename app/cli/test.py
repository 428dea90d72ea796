"""`prep test`: linters, import floors, types, then pytest, whose summary line comes last.

`./prep test` installs the tools first. In another environment: `pip install -e '.[test]'`.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer

from app.cli import terminal
from app.cli.options import option
from prep_common.names import closest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = tuple(
    "pytest xdist pytest_rerunfailures hypothesis transformers peft jsonschema streamlit playwright "
    "ruff importlinter mypy yaml".split()
)
FAST, PUSH, ALL = "fast", "not slow or reached", "slow or not slow"
"""Marks of the tests in a tier; tests/conftest.py gives them."""
LAST_GREEN = ROOT / "tests" / "last_green.json"
FLAGS = re.compile(
    r"-[xvqsl]+|--(lf|ff|nf|sw|co|pdb|last-failed|exitfirst|collect-only|verbose|quiet|setup-show)"
)
"""pytest's usual options without a value: a test may follow. The word after another one is taken for its value."""
MAX_WORKERS = 4  # each holds torch and a model: more would exhaust memory before they save time


@terminal.context(allow_extra_args=True, ignore_unknown_options=True)
def test(
    ctx: typer.Context,
    fast: Annotated[bool, option("Only the fast tier: under a minute.", "--fast")] = False,
    all_: Annotated[bool, option("Everything, with a fresh seed: about 50 minutes.", "--all")] = False,
    browser: Annotated[bool, option("Also tests in Chromium, as CI does.", "--browser")] = False,
    seed: Annotated[int | None, option("With --all: the seed of a run to repeat.", min=0)] = None,
    lint: Annotated[bool, option("Run ruff, import-linter and mypy first.")] = True,
) -> None:
    """Run the linters and the tests. Other arguments go to pytest.

    Of the slow tests, those run that a change since the last green run of --all can reach.

    \b
    Examples:
      prep test           what a change can reach
      prep test --fast    before a commit: without mypy, under a minute
      prep test --all     all tests; when green, tests/last_green.json says so
      prep test --no-lint tests/core -k preempt  without linters
    """
    if fast + all_ + browser > 1:
        raise terminal.Problem("--fast, --browser and --all exclude each other", "prep test --all")
    if seed is not None and not all_:
        raise terminal.Problem("--seed belongs to --all", f"prep test --all --seed {seed}")
    missing = [name for name in TOOLS if find_spec(name) is None]
    if missing or not (ROOT / "tests").is_dir():
        tools = f"the test tools are not installed here: {', '.join(missing)}"
        raise terminal.Problem(
            tools if missing else f"no tests in {ROOT}",
            "./prep test   (installs them)   or   pip install -e '.[test]'",
            code=terminal.ENVIRONMENT,
        )
    refuse_unknown_tests(ctx.args)
    before = commit()
    started = time.monotonic()
    failed = run_linters(types=not fast) if lint else []
    tier = FAST if fast else ALL if all_ else PUSH if browser else f"({PUSH}) and not browser"
    if all_ and seed is None:
        seed = 1 + secrets.randbelow(40_000)
    examples = [] if seed is None else [f"--hypothesis-seed={seed}"]
    arguments = ["-q", "--durations=10", "-m", tier, *examples, *workers(ctx.args), *ctx.args]
    status = run("pytest", [sys.executable, "-m", "pytest", *arguments], seed=seed)
    if all_ and lint and not ctx.args and not failed and not status:
        record(before, seed or 0, round(time.monotonic() - started))
    if failed:
        # On stderr: pytest's summary must stay the last line of stdout, which tools read.
        terminal.tell_error(f"failed before the tests: {', '.join(failed)}", "scroll up to the first of them")
    raise typer.Exit(terminal.CHECKS_FAILED if failed or status else 0)


def refuse_unknown_tests(arguments: list[str]) -> None:
    """Raise a Problem for a path or name that is not a test, with the nearest ones, before the linters run."""
    if "--pyargs" in arguments:
        return
    for before, word in pairwise(["", *arguments]):
        is_value = before.startswith("-") and not FLAGS.fullmatch(before) and "=" not in before
        if word.startswith(("-", "@")) or is_value:  # @FILE: pytest reads arguments from it
            continue
        file, *names = word.partition("[")[0].split("::")
        path = ROOT / file
        if not (os.path.isfile(path) if names else os.path.exists(path)):
            raise terminal.Problem(f"there is no test {word!r}", _nearest(word))
        # A class may inherit its tests, and be assigned: TestPool = PoolMachine.TestCase
        pattern = r"(?m)(def |class |^){}\b"
        if names and not re.search(pattern.format(re.escape(names[0])), path.read_text(encoding="utf-8")):
            raise terminal.Problem(f"{file} has no test {names[0]!r}", _nearest(names[0]))


def _nearest(word: str) -> str:
    """Return the command for the tests whose file, folder or function has the name most similar to `word`."""
    wanted = Path(word).name.removesuffix(".py")
    options = {}
    for path in sorted((ROOT / "tests").rglob("*")):
        if path.is_dir() and "__" not in path.name:
            options[path.name] = f"prep test {path.relative_to(ROOT)}"
        elif path.match("test_*.py"):
            options[path.stem.removeprefix("test_")] = f"prep test {path.relative_to(ROOT)}"
            if wanted.startswith("test_"):
                names = re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))
                options |= {path.stem: f"prep test {path.relative_to(ROOT)}"}
                options |= {name: f"prep test -k {name}" for name in names}
    close = closest(wanted, options)
    return options[close] if close else "prep test tests/app   (a folder of tests)"


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


def run(name: str, command: list[str], *, seed: int | None = None) -> int:
    print(f"== {name}" if seed is None else f"== {name}   (again: prep test --all --seed {seed})", flush=True)
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    # Container images set it; without byte code each of the hundreds of child processes compiles prep again.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    if seed is not None:
        environment["PREP_TEST_SEED"] = str(seed)
    return subprocess.run(command, cwd=ROOT, env=environment).returncode


def commit() -> str | None:
    """Return the commit that is checked out, or None if files differ from it or git does not know."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    status = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True)
    clean = head.returncode == status.returncode == 0 and not status.stdout
    return head.stdout.strip() if clean else None


def record(before: str | None, seed: int, seconds: int) -> None:
    """Write the commit whose tests all passed, from which the next `prep test` counts what changed."""
    if before is None or commit() != before:
        return terminal.tell_error("not recorded as green: files differ from the commit", "commit them first")
    day = datetime.now(UTC).date().isoformat()
    green = {"commit": before, "date": day, "seed": seed, "seconds": seconds}
    LAST_GREEN.write_text(json.dumps(green, indent=2) + "\n", encoding="utf-8")

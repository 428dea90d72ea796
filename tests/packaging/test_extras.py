"""Each extra alone has the libraries of every command and page that it is installed for."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from app.debugger.main import PAGES
from interview.drills import LIBRARIES

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
BOOTSTRAP = (ROOT / "prep").read_text()
HIDE = """
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *others: None if name.partition(".")[0] in {hidden!r} else find(name, *others)
"""
"""A sitecustomize.py that hides every library of the test environment that an extra does not bring."""
OPEN_PAGES = """
import sys
from pathlib import Path
from streamlit.testing.v1 import AppTest
for page in sys.argv[2:]:
    import os
    os.environ["PREP_APP_PAGE"] = page
    app = AppTest.from_file(sys.argv[1], default_timeout=60)
    app.query_params["run"] = "memory-pressure"
    app.run()
    assert not app.exception, (page, [(error.message, error.stack_trace) for error in app.exception])
    missing = [error.value for error in app.error if "not installed" in error.value]
    assert not missing, (page, missing)
"""
PROMISES = {
    "app": ["interview.drills.running", "engine.server.run", "app.debugger.drill.stage_worker"],
    "serve": [
        "engine.server.run", "engine.gateway.run", "engine.fleet.run", "engine.core.kv_zmq", "zmq", "msgspec",
        "engine.server.load_client", "engine.server.scrape", "engine.server.diagnosis.probe",
        "app.bench.upgrade", "app.bench.live_fleet", "interview.drills.running",
    ],
    "lesson": ["jupyterlab", "ipykernel", "nbclient", "lessons.course.widgets", "lessons.mine.server"],
    "cards": ["genanki", "fpdf", "quizzes.cards.anki", "quizzes.cards.pdf"],
    "otel": ["engine.server.tracing"],
    "plot": ["vl_convert"],
    "site": ["app.site.build", "app.site.settings", "material", "mkdocstrings_handlers.python"],
    "structured": ["engine.grammar.xgrammar_backend", "xgrammar"],
}  # fmt: skip
"""Extra -> modules that its commands import, besides those of app/cli."""
NOT_HERE = {"test", "ray", "cuda"}
"""Extras of developers, of a cluster, and of kernels for GPUs."""


def closure(requirements: list[str]) -> set[str]:
    """Names of all distributions that pip installs for these requirements here."""
    found: set[str] = set()
    todo = [(Requirement(text), frozenset[str]()) for text in requirements]
    done = set()
    while todo:
        wanted, of = todo.pop()
        environments = [{"extra": extra} for extra in (of or {""})]
        if wanted.marker and not any(wanted.marker.evaluate(environment) for environment in environments):
            continue
        key = (canonicalize_name(wanted.name), frozenset(wanted.extras))
        if key in done:
            continue
        done.add(key)
        found.add(key[0])
        try:
            below = distribution(wanted.name).requires or []
        except PackageNotFoundError:
            continue
        todo += [(Requirement(text), key[1]) for text in below]
    return found


@cache
def modules_of(extra: str) -> set[str]:
    """Top-level modules that exist where only prep and this extra are installed. "core": no extra."""
    wanted = closure([*PROJECT["dependencies"], *EXTRAS.get(extra, []), "pip", "setuptools"])
    return {
        module
        for module, names in packages_distributions().items()
        if any(canonicalize_name(name) in wanted | {"prep-workbench"} for name in names)
    }


def installed_by(command: str) -> str:
    """The extra that `./prep COMMAND` installs, by the cases of the script."""
    for pattern, extra in re.findall(r"(?:in|;;) ([^)\n]+)\) extra=(\S+)(?= ;;)", BOOTSTRAP):
        for word in pattern.replace("'", "").split("|"):
            if command == word.strip() or command.startswith(f"{word.strip()} "):
                return command.split()[0] if extra == "$1" else extra
    return "core"


def needed() -> list[tuple[str, tuple[str, ...], str, str]]:
    """(file, libraries, command, extra) of every call of `need_libraries`."""
    found = []
    for path in sorted((ROOT / "app" / "cli").rglob("*.py")):
        tree = ast.parse(path.read_text())
        known = {
            target.id: ast.literal_eval(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.List | ast.Tuple)
            for target in node.targets
            if isinstance(target, ast.Name) and all(isinstance(x, ast.Constant) for x in node.value.elts)
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or getattr(node.func, "attr", "") != "need_libraries":
                continue
            _, names, command, extra = node.args
            libraries = (
                known.get(names.id, LIBRARIES) if isinstance(names, ast.Name)
                else [name.value for name in names.elts if isinstance(name, ast.Constant)]
            )  # fmt: skip
            found.append((str(path), tuple(libraries), ast.literal_eval(command), ast.literal_eval(extra)))
    return found


def test_a_hint_names_a_command_that_installs_what_is_missing() -> None:
    calls = needed()
    assert len(calls) >= 15
    for path, libraries, command, extra in calls:
        assert installed_by(command) == extra, f"{path}: ./prep {command} does not install {extra}"
        missing = set(libraries) - modules_of(extra)
        assert not missing, f"{path}: {extra} does not bring {missing}"


def test_the_pages_have_all_that_their_extra_promises() -> None:
    assert set(LIBRARIES) <= modules_of("app"), "the Drill room starts servers"


def run_with(extra: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    hidden = packages_distributions().keys() - modules_of(extra)
    (folder / "sitecustomize.py").write_text(HIDE.format(hidden=hidden))
    environment = {
        **os.environ,
        "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
        "PREP_HOME": str(folder / "home"),
        "PREP_DEBUG": "1",
    }
    return subprocess.run(
        [sys.executable, *words], env=environment, cwd=folder, capture_output=True, text=True, timeout=300
    )


@pytest.mark.slow
@pytest.mark.parametrize("extra", sorted(PROMISES))
def test_an_extra_alone_imports_all_that_its_commands_use(extra: str, tmp_path: Path) -> None:
    assert EXTRAS.keys() == PROMISES.keys() | NOT_HERE
    done = run_with(extra, tmp_path, "-c", f"import {', '.join(PROMISES[extra])}")
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
def test_without_an_extra_every_command_prints_its_help(tmp_path: Path) -> None:
    commands = "from app.cli.main import COMMANDS; print(*COMMANDS)"
    names = run_with("core", tmp_path, "-c", commands).stdout.split()
    assert len(names) > 30
    program = (
        "from typer.testing import CliRunner\nfrom app.cli.main import *\nimport sys, runpy\n"
        f"for name in {names!r}:\n"
        "    sys.argv = ['prep', name, '--help']\n"
        "    try:\n        runpy.run_module('app.cli.main', run_name='__main__')\n"
        "    except SystemExit as done:\n        assert not done.code, (name, done.code)\n"
    )
    done = run_with("core", tmp_path, "-c", program)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
def test_every_page_opens_with_the_extra_of_the_workbench_alone(tmp_path: Path) -> None:
    entry = ROOT / "app" / "debugger" / "entry" / "workbench.py"
    done = run_with("app", tmp_path, "-c", OPEN_PAGES, str(entry), *PAGES)
    assert done.returncode == 0, done.stderr[-3000:]

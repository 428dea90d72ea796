"""Sizes that keep the tree readable."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST_LINES = 80
"""Lines of a function, docstring included: what fits on a screen."""


def python_files(*folders: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [
        ROOT / name for name in listed.stdout.splitlines() if name.endswith(".py") and (ROOT / name).exists()
    ]


@pytest.mark.parametrize(
    "folder", ["prep_common", "kernels", "engine", "quizzes", "lessons", "interview", "app", "tests"]
)
def test_a_function_fits_on_a_screen(folder: str) -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {length} lines"
        for path in python_files(folder)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or 0) - node.lineno + 1) > MOST_LINES
    ]
    assert not long, "\n".join(long)


@pytest.mark.parametrize(("target", "most"), [("engine/core", 4000), ("engine/core/scheduler.py", 450)])
def test_the_core_stays_small(target: str, most: int) -> None:
    lines = sum(path.read_text().count("\n") for path in python_files(target))
    assert lines <= most, f"{target} has {lines} lines"


HOUSE_WORDS = {"each", "found"}
"""Names that say where a value came from. A reader wants to know what it is: a request, a match, a report."""


@pytest.mark.parametrize("folder", ["prep_common", "kernels", "engine", "quizzes", "interview", "app"])
def test_variables_are_named_after_what_they_hold(folder: str) -> None:
    named = [
        f"{path.relative_to(ROOT)}:{node.lineno} {name}"
        for path in python_files(folder)
        for node in ast.walk(ast.parse(path.read_text()))
        if (name := bound_name(node)) in HOUSE_WORDS
    ]
    assert not named, "\n".join(named)


def bound_name(node: ast.AST) -> str | None:
    """Return the name that a node binds: of a variable, or of a parameter."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    return node.arg if isinstance(node, ast.arg) else None

"""The tests of grading, lint, learning and claims must notice mistakes: each mutant fails the test that it names."""

from __future__ import annotations

import ast
import inspect
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.mutation import Mutation, patched
from tests.quizzes.mutants import MUTATIONS, ROOT, mutated


def failure(tests: ModuleType, name: str, tmp_path: Path) -> str | None:
    """Return the first failure of a test function over all its parameters; None if it passes."""
    function = getattr(tests, name)
    for number, values in enumerate(_parameters(function)):
        here = tmp_path / str(number)
        here.mkdir(parents=True)
        with pytest.MonkeyPatch.context() as patch:
            given = {"tmp_path": here, "monkeypatch": patch}
            try:
                with _fixtures(tests, function, {**given, **values}) as arguments:
                    function(**arguments)
            except (Exception, pytest.fail.Exception) as error:
                return f"{values}: {type(error).__name__}: {error}"
    return None


def _parameters(function: Callable[..., Any]) -> Iterator[dict[str, Any]]:
    """Every combination that `pytest.mark.parametrize` asks for."""
    columns = []
    for mark in getattr(function, "pytestmark", []):
        if mark.name == "parametrize":
            names, rows = mark.args[:2]
            names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
            columns.append([dict(zip(names, row if len(names) > 1 else [row], strict=True)) for row in rows])
    for combination in itertools.product(*columns):
        yield {name: value for row in combination for name, value in row.items()}


@contextmanager
def _fixtures(
    tests: ModuleType, function: Callable[..., Any], known: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Arguments of a test function: `known` ones and those that the fixtures of its file make."""
    running = []

    def value(name: str) -> Any:
        if name not in known:
            fixture = inspect.unwrap(getattr(tests, name))
            made = fixture(**{needed: value(needed) for needed in inspect.signature(fixture).parameters})
            if inspect.isgenerator(made):
                running.append(made)
                made = next(made)
            known[name] = made
        return known[name]

    try:
        yield {name: value(name) for name in _wanted(function)}
    finally:
        for generator in reversed(running):
            next(generator, None)


def _wanted(function: Callable[..., Any]) -> list[str]:
    """Names of its arguments, except those that hypothesis draws."""
    return [] if hasattr(function, "hypothesis") else list(inspect.signature(function).parameters)


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_tests_catch(mutation: Mutation, tmp_path: Path) -> None:
    test_file, name = mutation.caught_by.split(".")
    with mutated(mutation, test_file) as tests:
        assert failure(tests, name, tmp_path) is not None, f"{mutation.name} survives {mutation.caught_by}"


@pytest.mark.slow
@pytest.mark.parametrize("test_file", sorted({mutation.caught_by.split(".")[0] for mutation in MUTATIONS}))
def test_an_unchanged_copy_survives(test_file: str, tmp_path: Path) -> None:
    called = {
        mutation.caught_by.split(".")[1]
        for mutation in MUTATIONS
        if mutation.caught_by.startswith(f"{test_file}.")
    }
    with mutated(None, test_file) as tests:
        failures = {name: failure(tests, name, tmp_path / name) for name in sorted(called)}
    assert {name: why for name, why in failures.items() if why is not None} == {}


def test_every_mutant_has_its_own_name_and_there_are_enough() -> None:
    assert len(MUTATIONS) >= 143
    assert [name for name, count in Counter(m.name for m in MUTATIONS).items() if count > 1] == []


@pytest.mark.parametrize("module", sorted({mutation.module for mutation in MUTATIONS}))
def test_mutants_survive_reformatting_and_new_comments(module: str) -> None:
    source = (ROOT / "quizzes" / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
            node.body.insert(0, ast.Expr(ast.Constant("Another docstring.")))
    reworded = ast.unparse(ast.fix_missing_locations(tree))
    assert reworded != source
    for mutation in MUTATIONS:
        if mutation.module == module:
            changed = mutation.apply(reworded)
            assert changed != reworded


def test_a_patch_must_fit_exactly_one_place() -> None:
    source = "def f(a, b):\n    if a > b:\n        return a + 1\n    return b + 1\n"
    assert patched(source, "f", "a > b", "a < b") == source.replace("a > b", "a < b")
    assert (
        patched(source, "f", "if a > b: ...", "...") == "def f(a, b):\n    return a + 1\n    return b + 1\n"
    )
    for old in ("_ + 1", "a > c", "return"):
        with pytest.raises(ValueError, match="matches [02] places"):
            patched(source, "f", old, "0")
    with pytest.raises(ValueError, match="g is defined 0 times"):
        patched(source, "g", "a > b", "a < b")


def test_wildcards_stand_for_the_same_thing_in_the_replacement() -> None:
    source = "def f():\n    return g(h(1), [2, 3], k=4, m=5)\n"
    assert "g(h(1), m=5)" in patched(source, "f", "g(_1, _, k=_, m=_2)", "g(_1, m=_2)")
    assert "g(0, [2, 3], k=4, m=5)" in patched(source, "f", "g(_, ...)", "g(0, ...)")
    assert "max(4, h(1))" in patched(source, "f", "g(_1, _, k=_2, m=_)", "max(_2, _1)")
    with pytest.raises(ValueError, match="matches 0 places"):
        patched(source, "f", "g(_1, _1, ...)", "0")

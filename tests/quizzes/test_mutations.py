"""What grades a learner is worth something only if its tests notice mistakes: each mutant must be caught."""

from __future__ import annotations

import inspect
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.quizzes.mutants import MUTATIONS, Mutation, mutated


def failure(tests: ModuleType, name: str, tmp_path: Path) -> str | None:
    """The first complaint of a test function, over all its parameters; None if it passes."""
    function = getattr(tests, name)
    for number, values in enumerate(_parameters(function)):
        here = tmp_path / str(number)
        here.mkdir()
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
    """Arguments of a test function: known ones, and what the fixtures of its file give."""
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
    """Its arguments, but those that hypothesis draws."""
    return [] if hasattr(function, "hypothesis") else list(inspect.signature(function).parameters)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_tests_catch(mutation: Mutation, tmp_path: Path) -> None:
    test_file, name = mutation.caught_by.split(".")
    with mutated(mutation, test_file) as tests:
        assert failure(tests, name, tmp_path) is not None, f"{mutation.name} survives {mutation.caught_by}"


@pytest.mark.parametrize("caught_by", sorted({mutation.caught_by for mutation in MUTATIONS}))
def test_an_unchanged_copy_survives(caught_by: str, tmp_path: Path) -> None:
    test_file, name = caught_by.split(".")
    with mutated(None, test_file) as tests:
        assert failure(tests, name, tmp_path) is None


def test_every_mutant_has_a_name_of_its_own_and_there_are_enough() -> None:
    assert len(MUTATIONS) >= 40
    assert [name for name, count in Counter(m.name for m in MUTATIONS).items() if count > 1] == []

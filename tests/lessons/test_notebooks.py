"""Every lesson executed in a real kernel: as it ships, and with the reference solutions; every widget driven."""

from __future__ import annotations

import ast
import json
import re

import pytest

from lessons.course.checking import run_checks
from lessons.course.lesson_files import Lesson, cells, lessons, solution, stub
from lessons.course.mutants import mutants
from lessons.course.notebook_build import build, execute

EVERY = pytest.mark.parametrize("lesson", lessons(), ids=lambda lesson: lesson.number)
DRIVE = """
for _explorer in this.explorers:
    _told = _explorer.drive_all()
    assert all(_told.values()), _told
    assert len(set(_told.values())) > 1, f"{_explorer.name}: the controls change nothing"
    for _key in _explorer.controls:
        assert any(_name.startswith(f"{_key}=") for _name in _told), _key
this.record(widgets=len(this.explorers), controls=sum(len(each.controls) for each in this.explorers))
"""


def code_cell(name: str, source: str) -> dict:
    return {
        "cell_type": "code",
        "id": name,
        "metadata": {},
        "source": source,
        "outputs": [],
        "execution_count": None,
    }


def changed_by_solutions(lesson: Lesson) -> list[dict]:
    """Exercise cells with the reference solutions, and each later cell that takes a piece, checks, or uses what
    such a cell has defined."""
    changed: set[str] = set()
    found = []
    for cell in cells(lesson):
        if cell.kind != "code":
            continue
        text = solution(cell.exercise).rstrip() if cell.exercise else cell.text
        tree = ast.parse(text)
        names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
        used = {node.id for node in names if isinstance(node.ctx, ast.Load)}
        if cell.exercise or re.search(r"\bthis\.(piece|check)\(", text) or used & changed:
            changed |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
            changed |= {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
            found.append(code_cell(f"solved-{cell.name.replace('.', '-')}", text))
    return found


@pytest.mark.slow
@EVERY
def test_it_runs_as_it_ships_and_then_with_the_solutions_and_every_control_works(lesson: Lesson) -> None:
    shipped, solved = build(lesson), changed_by_solutions(lesson)
    assert len(solved) >= 2 * len(lesson.exercises)
    cells_of_both = [*shipped["cells"], code_cell("drive", DRIVE), *solved]
    run = execute({**shipped, "cells": cells_of_both}, quick=True)
    assert run.errors == [] and run.warnings == []
    assert run.records["widgets"] >= 1
    text = json.dumps(run.notebook)
    assert "Traceback" not in text
    at = text.index('"drive"')
    assert text[:at].count("is not written yet") >= len(lesson.exercises)
    for exercise in lesson.exercises:
        assert f"{exercise}: " in text[at:] and "solved" in text[at:]


@pytest.mark.slow
@EVERY
def test_solutions_pass_and_every_mutant_is_caught_by_the_check_it_names(lesson: Lesson) -> None:
    for exercise in lesson.exercises:
        report = run_checks(exercise, solution(exercise))
        assert report.ok, (exercise, report.problem, [each for each in report.results if not each.ok])
    for mutant in mutants(lesson):
        report = run_checks(mutant.exercise, mutant.source, only=mutant.check)
        assert report.results, f"{mutant.exercise}: no check is called {mutant.check}, or {report.problem}"
        assert not report.results[0].ok, f"{mutant.exercise} {mutant.check} accepts: {mutant.why}"


@pytest.mark.slow
@EVERY
def test_a_stub_is_not_yet_written_and_nothing_worse(lesson: Lesson) -> None:
    for exercise in lesson.exercises:
        report = run_checks(exercise, stub(lesson, exercise))
        assert report.is_stub and not report.ok and "not written yet" in report.problem, (exercise, report)

"""Every lesson executed in a real kernel: as it ships, and with the reference solutions; every widget driven."""

from __future__ import annotations

import json

import pytest

from lessons.course.checking import run_checks
from lessons.course.lesson_files import Lesson, lessons, solution, stub
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


def with_cell(notebook: dict, source: str) -> dict:
    cell = {
        "cell_type": "code",
        "id": "added",
        "metadata": {},
        "source": source,
        "outputs": [],
        "execution_count": None,
    }
    return {**notebook, "cells": [*notebook["cells"], cell]}


@pytest.mark.slow
@EVERY
def test_it_runs_as_it_ships_and_every_control_works(lesson: Lesson) -> None:
    run = execute(with_cell(build(lesson), DRIVE), quick=True)
    assert run.errors == [] and run.warnings == []
    assert run.records["widgets"] >= 1
    text = json.dumps(run.notebook)
    assert "Traceback" not in text
    assert text.count("is not written yet") >= len(lesson.exercises)


@pytest.mark.slow
@EVERY
def test_it_runs_with_the_solutions_in_place(lesson: Lesson) -> None:
    run = execute(build(lesson, solved=True), quick=True)
    assert run.errors == [] and run.warnings == []
    text = json.dumps(run.notebook)
    for exercise in lesson.exercises:
        assert f"{exercise}: " in text and "solved" in text


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


@EVERY
def test_a_stub_is_not_yet_written_and_nothing_worse(lesson: Lesson) -> None:
    for exercise in lesson.exercises:
        report = run_checks(exercise, stub(lesson, exercise))
        assert report.is_stub and not report.ok and "not written yet" in report.problem, (exercise, report)

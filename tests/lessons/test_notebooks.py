"""Every lesson executed in a real kernel: as it ships, and with the reference solutions; every widget driven.

One run for each lesson. As it ships, it prints what is committed. Then the same kernel drives the widgets, and runs
the exercises and what uses them again with the solutions. Sizes are small, but for cells whose output is compared.
"""

from __future__ import annotations

import ast
import copy
import json
import re
from typing import Any

import nbformat
import pytest

from lessons.course.checking import run_checks
from lessons.course.lesson_files import Lesson, cells, find_lesson, lessons, solution, stub
from lessons.course.mutants import mutants
from lessons.course.notebook_build import (
    ASKING,
    VARIES,
    build,
    execute,
    source_of,
    to_text,
    with_kept_outputs,
)

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


def code_cell(name: str, source: str, *, varies: bool = False) -> dict:
    return {
        "cell_type": "code",
        "id": name,
        "metadata": {"tags": [VARIES]} if varies else {},
        "source": source,
        "outputs": [],
        "execution_count": None,
    }


def compared_in_full(shipped: dict[str, Any]) -> list[dict]:
    """Return the cells; those whose output varies run in small sizes.

    Sentences about times hold on a quiet machine only: small sizes skip them, and `prep lesson build` does not.
    """
    found, is_quick = [], False
    for cell in [*shipped["cells"], code_cell("last", "", varies=True)]:
        if cell["cell_type"] == "code" and is_exempt(cell) != is_quick:
            is_quick = not is_quick
            found.append(code_cell(f"sizes-{len(found)}", f"this.quick = {is_quick}"))
        found.append(cell)
    return found


def changed_by_solutions(lesson: Lesson) -> list[dict]:
    """Return the exercise cells with the solutions, and each later cell that checks, takes a piece, or uses a name that
    a solution defines and its stub does not.

    All others run the same code as before: an exercise that is not written yet leaves its piece to the solution.
    """
    changed: set[str] = set()
    found = []
    for cell in cells(lesson):
        if cell.kind != "code":
            continue
        text = solution(cell.exercise).rstrip() if cell.exercise else cell.text
        loaded, stored = names(text)
        if cell.exercise or re.search(r"\bthis\.(piece|check)\(", text) or loaded & changed:
            changed |= stored - names(cell.text)[1] if cell.exercise else set()
            found.append(code_cell(f"solved-{cell.name.replace('.', '-')}", text))
    return found


def names(text: str) -> tuple[set[str], set[str]]:
    """Return the names that a cell reads, and those that it defines."""
    tree = ast.parse(text)
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    stored = {node.id for node in nodes if not isinstance(node.ctx, ast.Load)}
    stored |= {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    stored |= {each.asname or each.name.partition(".")[0] for node in imports for each in node.names}
    return {node.id for node in nodes if isinstance(node.ctx, ast.Load)}, stored


def committed(lesson: Lesson) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lesson.notebook.read_text(encoding="utf-8"))
    return found


def printed(cell: dict[str, Any]) -> str:
    """Return what a cell has printed, and the text of what it has shown."""
    texts = [
        output.get("text", output.get("data", {}).get("text/plain", "")) for output in cell.get("outputs", [])
    ]
    return "".join("".join(text) for text in texts)


def is_exempt(cell: dict[str, Any]) -> bool:
    return VARIES in cell["metadata"].get("tags", [])


def stale(recorded: dict[str, Any], fresh: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Return cell id -> (recorded text, text of the run) where they differ; exempt, asking and other cells may."""
    known = {cell["id"]: cell for cell in recorded["cells"] if cell["cell_type"] == "code"}
    ran = [cell for cell in fresh["cells"] if cell["id"] in known and not is_exempt(cell)]
    ran = [cell for cell in ran if not source_of(cell).startswith(ASKING)]
    pairs = {cell["id"]: (printed(known[cell["id"]]), printed(cell)) for cell in ran}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


@pytest.mark.slow
@EVERY
def test_it_prints_what_is_recorded_and_runs_with_the_solutions_and_every_control_works(
    lesson: Lesson,
) -> None:
    shipped, solved = build(lesson), changed_by_solutions(lesson)
    assert len(solved) >= 2 * len(lesson.exercises)
    run = execute({**shipped, "cells": [*compared_in_full(shipped), code_cell("drive", DRIVE), *solved]})
    assert run.errors == [] and run.warnings == []
    assert stale(committed(lesson), run.notebook) == {}, f"prep lesson build {lesson.number}"
    assert run.records["widgets"] >= 1
    texts = {cell["id"]: printed(cell) for cell in run.notebook["cells"]}
    assert [name for name, text in texts.items() if "Traceback" in text] == []
    at = list(texts).index("drive")
    before, after = "".join(list(texts.values())[:at]), "".join(list(texts.values())[at:])
    assert before.count("is not written yet") >= len(lesson.exercises)
    assert [exercise for exercise in lesson.exercises if f"{exercise}: " not in after] == []
    assert "solved" in after


@EVERY
def test_the_committed_notebook_says_nothing_twice(lesson: Lesson) -> None:
    text = lesson.notebook.read_text(encoding="utf-8")
    notebook = committed(lesson)
    nbformat.validate(nbformat.reads(text, as_version=4))
    assert to_text(notebook) == text, f"prep lesson build {lesson.number}"
    assert text.count("\n") == 3 + len(notebook["cells"])
    shown = [cell for cell in notebook["cells"] if cell.get("outputs")]
    assert not any(source_of(cell).startswith(ASKING) for cell in shown)
    outputs = [[printed({"outputs": [output]}) for output in cell["outputs"]] for cell in shown]
    outputs = [[text for text in texts if text != "[plot]"] for texts in outputs]
    assert [texts for texts in outputs if len(set(texts)) < len(texts)] == []


def test_a_notebook_is_committed_without_what_its_source_tells() -> None:
    streams = [{"output_type": "stream", "name": "stdout", "text": text} for text in (["a\n"], "b\n")]
    cells = [
        code_cell("asks", 'this.check("07.1")') | {"outputs": streams},
        code_cell("prints", "print('a'); print('b')", varies=True)
        | {"outputs": streams, "execution_count": 7},
    ]
    first, second = json.loads(to_text({"cells": cells}))["cells"]
    assert first["outputs"] == [] and second["execution_count"] == 7
    assert second["metadata"] == {} and [output["text"] for output in second["outputs"]] == ["a\nb\n"]


@EVERY
def test_only_cells_with_measured_figures_are_exempt(lesson: Lesson) -> None:
    recorded = {cell["id"]: cell for cell in committed(lesson)["cells"]}
    for cell in build(lesson)["cells"]:
        if is_exempt(cell):
            assert re.search(r"\d\.\d|\de[+-]\d|\[plot\]", printed(recorded[cell["id"]])), cell["id"]


def test_a_changed_figure_is_stale_unless_its_cell_is_exempt() -> None:
    recorded = with_kept_outputs(find_lesson("01"))
    assert recorded is not None
    old = copy.deepcopy(recorded)
    for cell in old["cells"]:
        for output in cell.get("outputs", []):
            if "text" in output:
                output["text"] = output["text"].replace("7,824", "7,825")
    assert list(stale(old, recorded)) == ["l01-reveal-passes"]
    assert stale(recorded, recorded) == {}


@pytest.mark.slow
@EVERY
def test_solutions_pass_and_every_mutant_is_caught_by_the_check_it_names(lesson: Lesson) -> None:
    for exercise in lesson.exercises:
        report = run_checks(exercise, solution(exercise))
        assert report.ok, (exercise, report.problem, [result for result in report.results if not result.ok])
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

"""The outputs in the committed notebooks are those that their code prints today."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest

from lessons.course.lesson_files import Lesson, find_lesson, lessons
from lessons.course.notebook_build import VARIES, build, execute

EACH = pytest.mark.parametrize("lesson", lessons(), ids=lambda lesson: lesson.number)


def committed(lesson: Lesson) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lesson.notebook.read_text(encoding="utf-8"))
    return found


def printed(cell: dict[str, Any]) -> str:
    """Return what a cell has printed, and the text of what it has shown."""
    texts = [each.get("text", each.get("data", {}).get("text/plain", "")) for each in cell["outputs"]]
    return "".join("".join(text) for text in texts)


def is_exempt(cell: dict[str, Any]) -> bool:
    return VARIES in cell["metadata"].get("tags", [])


def stale(recorded: dict[str, Any], fresh: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Return cell id -> (recorded text, text of the run) where they differ; exempt cells may."""
    known = {cell["id"]: cell for cell in recorded["cells"] if cell["cell_type"] == "code"}
    ran = [cell for cell in fresh["cells"] if cell["cell_type"] == "code" and not is_exempt(cell)]
    pairs = {cell["id"]: (printed(known[cell["id"]]), printed(cell)) for cell in ran}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


@pytest.mark.slow
@EACH
def test_every_recorded_output_is_what_the_code_prints(lesson: Lesson) -> None:
    notebook = build(lesson)
    exempt = {cell["id"] for cell in notebook["cells"] if is_exempt(cell)}
    run = execute(notebook)
    # A sentence about times holds on a quiet machine only; `prep lesson build` refuses it there.
    assert [error for error in run.errors if error.split(":")[0] not in exempt] == []
    assert stale(committed(lesson), run.notebook) == {}, f"prep lesson build {lesson.number}"


@EACH
def test_only_cells_with_measured_figures_are_exempt(lesson: Lesson) -> None:
    recorded = {cell["id"]: cell for cell in committed(lesson)["cells"]}
    for cell in build(lesson)["cells"]:
        if is_exempt(cell):
            assert re.search(r"\d\.\d|\de[+-]\d|\[plot\]", printed(recorded[cell["id"]])), cell["id"]


def test_a_changed_figure_is_stale_unless_its_cell_is_exempt() -> None:
    recorded = committed(find_lesson("01"))
    old = copy.deepcopy(recorded)
    for cell in old["cells"]:
        for output in cell.get("outputs", []):
            if "text" in output:
                output["text"] = [line.replace("7,824", "7,825") for line in output["text"]]
    assert list(stale(old, recorded)) == ["l01-reveal-passes"]
    assert stale(recorded, recorded) == {}

"""The learner's copies: made, updated, reset; nothing of theirs is lost, nothing tracked is written."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from nbclient import NotebookClient

from lessons.course import workspace
from lessons.course.lesson_files import Lesson, find_lesson, lessons, stub
from lessons.course.notebook import open_lesson
from lessons.course.notebook_build import build, source_of
from prep_common.child_process import ROOT

LESSON = find_lesson("07")


def saved() -> dict[str, Any]:
    return json.loads(workspace.notebook_path(LESSON).read_text())


def cell_of(notebook: dict[str, Any], exercise: str) -> dict[str, Any]:
    return next(cell for cell in notebook["cells"] if cell["id"] == f"l07-{exercise.replace('.', '-')}")


def edit(change: Any) -> None:
    notebook = saved()
    change(notebook)
    workspace.notebook_path(LESSON).write_text(json.dumps(notebook))


def test_a_first_open_copies_the_lesson_and_a_second_changes_nothing() -> None:
    tracked = LESSON.notebook.read_bytes()
    assert workspace.open_copy(LESSON).created
    before = workspace.notebook_path(LESSON).read_bytes()
    again = workspace.open_copy(LESSON)
    assert (again.created, again.updated) == (False, False)
    assert workspace.notebook_path(LESSON).read_bytes() == before
    assert LESSON.notebook.read_bytes() == tracked
    for exercise in LESSON.exercises:
        assert workspace.learner_source(LESSON, exercise) == stub(LESSON, exercise)


def test_a_copy_is_made_from_the_source_alone(tmp_path: Path) -> None:
    """A wheel has no built notebooks."""
    folder = tmp_path / LESSON.name
    folder.mkdir()
    shutil.copy(LESSON.folder / "lesson.py", folder)
    workspace.open_copy(LESSON.model_copy(update={"folder": folder}))
    alone = workspace.notebook_path(LESSON).read_bytes()
    workspace.reset(LESSON)
    assert workspace.notebook_path(LESSON).read_bytes() == alone


def test_a_copy_does_not_answer_its_own_predictions() -> None:
    shown = json.loads(LESSON.notebook.read_text())["cells"]
    assert any("You made no prediction" in json.dumps(cell.get("outputs", [])) for cell in shown)
    workspace.open_copy(LESSON)
    code = [cell for cell in saved()["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    edit(lambda notebook: notebook["cells"].pop(4))
    assert workspace.open_copy(LESSON).updated
    assert all(cell.get("outputs", []) == [] for cell in saved()["cells"])


def test_a_relative_folder_is_one_place_wherever_a_command_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREP_LESSONS", "mine")
    assert workspace.folder().is_absolute()


def test_an_update_keeps_code_and_own_cells_and_refreshes_the_text() -> None:
    workspace.open_copy(LESSON)
    own = {
        "cell_type": "code",
        "id": "mine",
        "metadata": {},
        "source": "note = 1",
        "outputs": [],
        "execution_count": None,
    }

    def change(notebook: dict[str, Any]) -> None:
        cell_of(notebook, "07.1")["source"] = "# exercise 07.1\nanswer = 42\n"
        notebook["cells"].insert(3, own)
        text = next(cell for cell in notebook["cells"] if cell["cell_type"] == "markdown")
        text["source"] = "an older text"

    edit(change)
    opened = workspace.open_copy(LESSON)
    assert opened.updated and opened.backup is not None and "older text" in opened.backup.read_text()
    now = saved()
    assert "answer = 42" in source_of(cell_of(now, "07.1"))
    assert [cell["id"] for cell in now["cells"]].index("mine") == 3
    assert "an older text" not in json.dumps(now)
    assert workspace.learner_sources() == {"07.1": "# exercise 07.1\nanswer = 42\n"}


def test_a_cell_whose_first_line_was_edited_away_is_found_by_its_id() -> None:
    workspace.open_copy(LESSON)
    edit(lambda notebook: cell_of(notebook, "07.1").update(source="class BlockAllocator: ..."))
    assert workspace.learner_source(LESSON, "07.1") == "class BlockAllocator: ..."


def test_a_renamed_notebook_is_simply_made_again() -> None:
    workspace.open_copy(LESSON)
    folder = workspace.folder()
    workspace.notebook_path(LESSON).rename(folder / "my own name.ipynb")
    assert workspace.open_copy(LESSON).created
    assert (folder / "my own name.ipynb").exists()


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"cells": 3}', "\x00\x01"])
def test_a_damaged_notebook_is_named_and_kept(damage: str) -> None:
    workspace.open_copy(LESSON)
    workspace.notebook_path(LESSON).write_text(damage)
    with pytest.raises(workspace.WorkspaceError, match="reset"):
        workspace.open_copy(LESSON)
    assert workspace.notebook_path(LESSON).read_text() == damage
    backup = workspace.reset(LESSON)
    assert backup is not None and backup.read_text() == damage
    assert workspace.learner_source(LESSON, "07.1") == stub(LESSON, "07.1")


def test_a_read_only_disk_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(workspace, "write_atomically", refuse)
    with pytest.raises(workspace.WorkspaceError, match="PREP_LESSONS"):
        workspace.open_copy(LESSON)


def test_an_unreadable_notebook_is_a_clear_error() -> None:
    path = workspace.notebook_path(LESSON)
    os.makedirs(path)  # a folder in its place
    with pytest.raises(workspace.WorkspaceError, match="cannot read"):
        workspace.open_copy(LESSON)


def test_cell_ids_are_stable_and_valid() -> None:
    first, second = build(LESSON), build(LESSON)
    assert first == second
    assert all(len(cell["id"]) <= 64 for cell in first["cells"])


@pytest.mark.parametrize("lesson", lessons(), ids=lambda lesson: lesson.number)
def test_a_copy_is_a_valid_notebook_for_any_editor(lesson: Lesson) -> None:
    notebook = nbformat.read(workspace.open_copy(lesson).path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)


@pytest.mark.slow
def test_a_plain_kernel_in_the_workspace_shows_results_as_text_and_pictures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in VS Code: no Jupyter server, no widget front end, the notebook's folder as working directory."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    path = workspace.open_copy(find_lesson("10")).path
    notebook = nbformat.read(path, as_version=4)
    names = [
        "setup",
        "run-budgets",
        "plot-timeline",
        "draw-explore",
        "draw-serving",
        "explore-serving",
        "say-it",
    ]
    notebook.cells = [cell for name in names for cell in notebook.cells if cell.id == f"l10-{name}"]
    NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(path.parent)}}).execute()
    explored, said = (notebook.cells[at].outputs[-1]["data"] for at in (-2, -1))
    assert "long prompt: 9 steps" in explored["text/plain"] and explored["image/png"]
    assert "Then test yourself:" in said["text/plain"]


def test_the_check_takes_the_cell_that_ran_last_though_its_first_line_is_gone() -> None:
    shell = InteractiveShell.instance()
    try:
        this = open_lesson("06")
        shell.run_cell("# exercise 06.1\nx = 1", cell_id="l06-06-1")
        shell.run_cell("# exercise 06.2\ny = 1", cell_id="l06-06-2")
        assert this.source("06.1").endswith("x = 1")
        shell.run_cell("x = (", cell_id="l06-06-1")
        assert this.source("06.1") == "x = ("
        assert this.source("06.2").endswith("y = 1")
    finally:
        InteractiveShell.clear_instance()

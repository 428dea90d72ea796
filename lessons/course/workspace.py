"""The learner's notebooks and files of labs, below the folder of their state. Tracked files are never edited.

An update of a notebook keeps every exercise cell and every cell that the learner added, refreshes the others by id, and
keeps the old file as `.bak`.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any

from lessons.course.lesson_files import Lab, Lesson, exercise_cell, exercise_of, lessons, stub
from lessons.course.notebook_build import build, digest, source_of
from prep_common.paths import data_dir, write_atomically
from prep_common.text_file import UnreadableFile, read_text, unreadable

MOST_BYTES = 1 << 20
"""Maximum size of a learner's file of code."""


class WorkspaceError(ValueError):
    """Raised if a file of the workspace cannot be read or written: what, why, next step."""


@dataclass(frozen=True)
class Opened:
    path: Path
    created: bool = False
    updated: bool = False
    backup: Path | None = None


def folder() -> Path:
    """Return the folder of the learner's notebooks. `PREP_LESSONS` overrides it."""
    chosen = os.environ.get("PREP_LESSONS")
    return Path(chosen).expanduser().absolute() if chosen else data_dir().absolute() / "lessons"


def notebook_path(lesson: Lesson) -> Path:
    return folder() / f"{lesson.name}.ipynb"


def open_copy(lesson: Lesson) -> Opened:
    """Make or update the learner's copy of a lesson. Raises WorkspaceError."""
    path = notebook_path(lesson)
    fresh = build(lesson)
    if not path.exists():
        _write(path, fresh)
        return Opened(path, created=True)
    mine = _read(path)
    merged = merge(mine, fresh)
    if merged["cells"] == mine["cells"]:
        return Opened(path)
    backup = _back_up(path)
    _write(path, merged)
    return Opened(path, updated=True, backup=backup)


def merge(mine: dict[str, Any], fresh: dict[str, Any]) -> dict[str, Any]:
    """Return the fresh notebook with the learner's work: their exercise cells, their outputs, their own cells.

    A cell of theirs stays behind the cell that it followed. A cell of the lesson that they edited counts as theirs
    too: exercises and predictions are made to be edited.
    """
    old = {cell.get("id"): cell for cell in mine["cells"]}
    known = {cell["id"] for cell in fresh["cells"]}
    followers: dict[str | None, list[dict[str, Any]]] = {}
    last: str | None = None
    for cell in mine["cells"]:
        if cell.get("id") in known:
            last = cell["id"]
        elif not str(cell.get("id", "")).startswith(f"{fresh['metadata']['prep']['lesson']}-"):
            followers.setdefault(last, []).append(cell)
    merged = list(followers.get(None, []))
    for cell in fresh["cells"]:
        kept = old.get(cell["id"])
        if kept is None:
            merged.append(cell)
        elif kept["cell_type"] == "code" and _is_theirs(kept, cell):
            merged.append(kept)
        else:
            outputs = {key: kept[key] for key in ("outputs", "execution_count") if key in kept}
            merged.append({**cell, **outputs})
        merged += followers.get(cell["id"], [])
    return {**fresh, "cells": merged}


def _is_theirs(kept: dict[str, Any], fresh: dict[str, Any]) -> bool:
    """Whether the learner changed the cell: it differs from the source that it was made from."""
    tags = fresh["metadata"].get("tags", [])
    if "exercise" in tags or "predict" in tags:
        return True
    made_from = kept.get("metadata", {}).get("prep_source")
    return made_from is not None and made_from != digest(source_of(kept))


def reset(lesson: Lesson) -> Path | None:
    """Move the learner's copy aside and make a new one. Return where the old one is."""
    path = notebook_path(lesson)
    backup = _back_up(path) if path.exists() else None
    path.unlink(missing_ok=True)
    open_copy(lesson)
    return backup


def learner_source(lesson: Lesson, exercise: str) -> str | None:
    """Return the cell of an exercise in the learner's notebook; None without a notebook or such a cell.

    The cell is found by its first line, or by its id if that line was edited away.
    """
    path = notebook_path(lesson)
    if not path.exists():
        return None
    found = None
    for cell in _read(path)["cells"]:
        if cell.get("cell_type") == "code":
            text = source_of(cell)
            if exercise_of(text) == exercise:
                return text
            if cell.get("id") == exercise_cell(lesson, exercise):
                found = text
    return found


def learner_sources() -> dict[str, str]:
    """Return exercise id -> source for all exercises that the learner has changed."""
    found: dict[str, str] = {}
    for lesson in lessons():
        for exercise in lesson.exercises:
            text = learner_source(lesson, exercise)
            if text is not None and text.strip() != stub(lesson, exercise).strip():
                found[exercise] = text
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
            raise ValueError("it has no cells")
    except OSError as error:
        raise WorkspaceError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, AttributeError) as error:
        raise WorkspaceError(
            f"{path} is not a notebook ({error}); prep lesson reset moves it aside and starts a new one"
        ) from error
    return dict(notebook)


def _write(path: Path, notebook: dict[str, Any]) -> None:
    _write_text(path, json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


def _write_text(path: Path, text: str) -> None:
    try:
        write_atomically(path, text)
    except OSError as error:
        raise WorkspaceError(
            f"cannot write {path}: {error.strerror or error}; choose another folder with PREP_LESSONS=FOLDER"
        ) from error


def lab_path(lab: Lab) -> Path:
    """Return where the learner's file of a lab lies."""
    return folder() / "labs" / lab.file_name


def open_lab(lab: Lab) -> Opened:
    """Make the learner's file of a lab from its stub, unless it exists. Raises WorkspaceError."""
    path = lab_path(lab)
    if path.exists():
        return Opened(path)
    _write_text(path, stub(lab, lab.number))
    accept_contract(lab)
    return Opened(path, created=True)


def lab_source(lab: Lab) -> str:
    """Return the learner's file of a lab, or the stub if there is none. Raises WorkspaceError if it is no text."""
    path = lab_path(lab)
    return read_source(path) if path.exists() else stub(lab, lab.number)


def read_source(path: Path) -> str:
    """Return a learner's file as text, without a byte order mark. Raises WorkspaceError if it is no text."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise WorkspaceError(f"cannot read {path}: it is not a file; use another one")
        if (size := path.stat().st_size) > MOST_BYTES:
            raise WorkspaceError(f"{path} has {size:,} bytes; a file of code has at most {MOST_BYTES:,}")
        return read_text(path)
    except UnreadableFile as error:
        raise WorkspaceError(str(error)) from None
    except OSError as error:
        raise WorkspaceError(str(unreadable(path, error))) from None


def _contract_path(lab: Lab) -> Path:
    return folder() / "labs" / ".contracts" / lab.file_name


def accept_contract(lab: Lab) -> None:
    """Keep the lab's stub as the contract that the learner's file follows. Raises WorkspaceError."""
    _write_text(_contract_path(lab), stub(lab, lab.number))


def contract_change(lab: Lab) -> str:
    """Return the difference between the contract that the learner's file was made for and the present one, or ""."""
    path = _contract_path(lab)
    try:
        old = path.read_text(encoding="utf-8") if path.is_file() and lab_path(lab).exists() else None
    except (OSError, UnicodeDecodeError):
        old = None
    new = stub(lab, lab.number)
    if old is None or old == new:
        return ""
    return "".join(
        unified_diff(
            old.splitlines(True), new.splitlines(True), "your file's contract", "the contract now", n=1
        )
    )


def reset_lab(lab: Lab) -> Path | None:
    """Move the learner's file aside and make a new one. Return where the old one is."""
    path = lab_path(lab)
    backup = _back_up(path) if path.exists() else None
    _write_text(path, stub(lab, lab.number))
    accept_contract(lab)
    return backup


def _back_up(path: Path) -> Path:
    backup = path.with_name(f"{path.stem}.{time.strftime('%Y%m%d-%H%M%S')}.bak{path.suffix}")
    try:
        shutil.copy2(path, backup)
    except OSError as error:
        raise WorkspaceError(f"cannot keep a copy of {path}: {error.strerror or error}") from error
    return backup

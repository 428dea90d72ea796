"""Build a lesson's notebook from its source, and execute it.

`lesson.ipynb` is committed with outputs, so that the repository's web page and our site show it: a cell on each line,
without what its source says already. A learner's copy is built anew. Cell ids come from cell names: a rebuilt notebook
differs only where its source does, and a learner's copy can be updated cell by cell.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lessons.course.lesson_files import Lesson, cells, solution
from prep_common.child_process import ROOT

CELL_SECONDS = 240
VARIES = "varies"
"""Tag of a cell that shows times or rounding errors: a second run shows others."""
ASKING = ("this.check(", "this.predict(")
"""Beginnings of cells that only ask: their output repeats the question, or says that no answer is there yet."""
WIDGET = "application/vnd.jupyter.widget-view+json"
KERNEL = {"display_name": "Python 3 (prep)", "language": "python", "name": "python3"}


@dataclass
class Run:
    """An executed notebook."""

    notebook: Any
    seconds: float
    errors: list[str] = field(default_factory=list)
    """"cell: error", in order."""
    warnings: list[str] = field(default_factory=list)
    records: dict[str, Any] = field(default_factory=dict)
    """Facts that the lesson recorded (`this.record`)."""


def build(lesson: Lesson, *, solved: bool = False) -> dict[str, Any]:
    """Return the notebook without outputs. solved: with the reference solutions in the exercise cells (tests only)."""
    prefix = lesson.name[:3]
    built = []
    for cell in cells(lesson):
        text = solution(cell.exercise).rstrip() if solved and cell.exercise else cell.text
        metadata = {"tags": cell.tags} if cell.tags else {}
        entry: dict[str, Any] = {
            "cell_type": cell.kind,
            "id": f"{prefix}-{cell.name.replace('.', '-')}",
            "metadata": {**metadata, "prep_source": digest(text)},
            "source": text.splitlines(keepends=True),
        }
        if cell.kind == "code":
            entry |= {"execution_count": None, "outputs": []}
        built.append(entry)
    return {
        "cells": built,
        "metadata": {
            "kernelspec": KERNEL,
            "language_info": {"name": "python"},
            "prep": {"lesson": prefix, "title": lesson.title},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def digest(text: str) -> str:
    """Return a short fingerprint of a cell's source."""
    return hashlib.sha256(text.strip().encode()).hexdigest()[:16]


def source_of(cell: Mapping[str, Any]) -> str:
    """Return a cell's source; the format allows a text or a list of lines."""
    source = cell.get("source", "")
    return source if isinstance(source, str) else "".join(source)


def sources(notebook: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return (id, kind, source) of each cell: what a build decides."""
    return [(cell["id"], cell["cell_type"], source_of(cell)) for cell in notebook["cells"]]


def is_current(lesson: Lesson) -> bool:
    """Whether the committed notebook was built from the lesson's source."""
    try:
        committed = json.loads(lesson.notebook.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return sources(committed) == sources(build(lesson))


def with_kept_outputs(lesson: Lesson) -> dict[str, Any] | None:
    """Return the notebook with the committed outputs, if only its prose has changed; None if code has."""
    try:
        committed = json.loads(lesson.notebook.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    fresh = build(lesson)
    old = {cell["id"]: cell for cell in committed["cells"] if cell["cell_type"] == "code"}
    new = [cell for cell in fresh["cells"] if cell["cell_type"] == "code"]
    if [(cell["id"], source_of(cell)) for cell in new] != [
        (key, source_of(cell)) for key, cell in old.items()
    ]:
        return None
    for cell in new:
        cell |= {key: old[cell["id"]][key] for key in ("outputs", "execution_count")}
    return fresh


def execute(
    notebook: dict[str, Any],
    *,
    quick: bool = False,
    environment: Mapping[str, str] | None = None,
    keep_going: bool = True,
    on_cell: Callable[[int, int], None] | None = None,
) -> Run:
    """Run all cells in a kernel of its own, in a scratch folder with an empty learner's state.

    keep_going: run the other cells after an error. on_cell(index, count) is called before each cell.
    """
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    node = nbformat.reads(json.dumps(notebook), as_version=4)
    with tempfile.TemporaryDirectory(prefix="prep-lesson-") as scratch:
        records = Path(scratch) / "records.jsonl"
        variables = {
            "PREP_HOME": scratch,
            "PREP_LESSONS": str(Path(scratch) / "lessons"),
            "PREP_QUICK": "1" if quick else "",
            "PREP_LESSON_RECORDS": str(records),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2"),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            **(environment or {}),
        }
        began = time.monotonic()
        client = NotebookClient(
            node,
            timeout=CELL_SECONDS,
            kernel_name="python3",
            extra_arguments=["--IPKernelApp.log_level=ERROR"],
            allow_errors=keep_going,
            resources={"metadata": {"path": scratch}},
            store_widget_state=False,
        )
        if on_cell is not None:
            client.on_cell_start = lambda cell, cell_index: on_cell(cell_index, len(node.cells))
        run = Run(node, 0.0)
        try:
            with _environment(variables):
                client.execute()
        except CellTimeoutError:
            run.errors.append(f"a cell ran longer than {CELL_SECONDS} s")
        except (CellExecutionError, DeadKernelError) as error:
            run.errors.append(str(error).strip().splitlines()[-1])
        run.seconds = time.monotonic() - began
        _collect(run)
        if records.exists():
            for line in records.read_text(encoding="utf-8").splitlines():
                run.records |= json.loads(line)
    return run


@contextmanager
def _environment(values: Mapping[str, str]) -> Any:
    """Set variables of this process: a kernel inherits them."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _collect(run: Run) -> None:
    """Note errors and warnings, and make the outputs fit to be committed."""
    for cell in run.notebook.cells:
        cell.metadata.pop("execution", None)
        if "outputs" in cell:
            cell.outputs = [each for output in cell.outputs for each in _still(output)]
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                run.errors.append(f"{cell.id}: {output.ename}: {output.evalue}")
            elif output.output_type == "stream" and output.name == "stderr" and output.text.strip():
                run.warnings.append(f"{cell.id}: {output.text.strip().splitlines()[-1]}")
    run.notebook.metadata.pop("widgets", None)
    run.notebook.metadata["language_info"] = {"name": "python"}
    run.notebook.metadata["kernelspec"] = KERNEL


def _still(output: Any) -> list[Any]:
    """Return what remains of an output without widgets: a picture with controls becomes a picture and its text."""
    from nbformat.v4 import new_output

    data = output.get("data", {})
    if data.pop(WIDGET, None) is None or "image/png" not in data:
        return [output]
    return [output, new_output("stream", name="stdout", text=data.pop("text/plain") + "\n")]


def to_text(notebook: Mapping[str, Any]) -> str:
    """Return a notebook as the text that is committed: a cell on each line, without what `build` tells."""
    lines = ",\n".join(_json(_shown(cell)) for cell in notebook["cells"])
    metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    return f'{{"cells": [\n{lines}\n],\n"metadata": {_json(metadata)}, "nbformat": 4, "nbformat_minor": 5}}\n'


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _shown(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a reader sees of a cell. A cell that only asks its learner says so itself: its output goes."""
    kept = {"cell_type": cell["cell_type"], "id": cell["id"], "metadata": {}, "source": source_of(cell)}
    if cell["cell_type"] != "code":
        return kept
    outputs: list[dict[str, Any]] = []
    for output in () if kept["source"].startswith(ASKING) else cell["outputs"]:
        if output["output_type"] == "stream":
            text = "".join(output["text"])
            if outputs and outputs[-1].get("name") == output["name"]:
                outputs[-1]["text"] += text
            else:
                outputs.append({**output, "text": text})
            continue
        data = {kind: "".join(value) for kind, value in output["data"].items()}
        if "image/png" in data:
            data["image/png"] = _smaller(data["image/png"])
        outputs.append({**output, "data": data})
    return {**kept, "execution_count": cell["execution_count"], "outputs": outputs}


def _smaller(picture: str) -> str:
    """Return a picture in base64 with at most 256 colours."""
    from PIL import Image

    image, smaller = Image.open(io.BytesIO(base64.b64decode(picture))), io.BytesIO()
    if image.mode == "P":
        return picture
    image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(smaller, "PNG", optimize=True)
    return base64.b64encode(smaller.getvalue()).decode()

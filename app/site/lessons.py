"""Render a lesson's notebook as a page: its text, its cells, and the outputs that are committed with it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any


def notebook_page(notebook: Path, number: str, pictures: Path) -> str:
    """Return the Markdown of a notebook, and write its pictures into the folder `pictures` beside the page."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    opening = (
        f"`./prep lesson open {number}` opens this notebook, in which you write and check the exercises."
    )
    parts = []
    for index, cell in enumerate(cells):
        text = "".join(cell["source"]).strip("\n")
        if cell["cell_type"] == "markdown":
            parts.append(text)
        elif text:
            parts.append(f"```python\n{text}\n```")
        for place, output in enumerate(cell.get("outputs", [])):
            parts.append(shown(output, pictures, f"{index}-{place}.png"))
        if index == 0:
            parts.append(opening)
    return "\n\n".join(part for part in parts if part) + "\n"


def shown(output: dict[str, Any], pictures: Path, name: str) -> str:
    """Return an output as Markdown; a picture becomes a file. A control is its picture and its words."""
    data = output.get("data", {})
    text = "".join(output.get("text", data.get("text/plain", ""))).rstrip("\n")
    parts = []
    if "image/png" in data:
        pictures.mkdir(parents=True, exist_ok=True)
        (pictures / name).write_bytes(base64.b64decode("".join(data["image/png"])))
        parts.append(f"![What the cell above draws]({pictures.name}/{name})")
        text = "" if text == "[plot]" else text
    if text:
        parts.append(f"``` {{ .text .output }}\n{text}\n```")
    return "\n\n".join(parts)

"""Places of an item that `prep new` left to its author."""

from __future__ import annotations

from pathlib import Path

from prep_common.text import unfilled

ROOT = Path(__file__).resolve().parents[1]
TEXT = (".py", ".yaml", ".md", ".css", ".js", ".html")


def left_to_fill(*paths: Path) -> list[str]:
    """Return "file:line: fill in the goal" for files and the files of folders, without those below app/new."""
    files = [file for path in paths for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    return [
        f"{file.relative_to(ROOT)}:{number}: {what}"
        for file in files
        if file.suffix in TEXT
        and "__pycache__" not in file.parts
        and not file.is_relative_to(ROOT / "app/new")
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        for what in unfilled(line)
    ]

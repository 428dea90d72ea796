"""The learner's own editor, for texts that are longer than a line."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from app.cli import terminal


def edit(text: str, name: str = "answer.txt") -> str:
    """Return the text as edited in $VISUAL or $EDITOR, unchanged if the editor cannot be started."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(text, encoding="utf-8")
        if not edit_file(path):
            return text
        return path.read_text(encoding="utf-8", errors="replace")


def edit_file(path: Path) -> bool:
    """Open a file in $VISUAL or $EDITOR until the editor ends. Return False, and say why, if it failed."""
    command = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "nano"
    try:
        subprocess.run([*shlex.split(command), str(path)], check=True)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        terminal.tell_error(f"the editor {command!r} failed: {error}", "set EDITOR, or write here")
        return False
    return True

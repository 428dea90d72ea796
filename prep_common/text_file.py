"""Read a file that a user names: its text, or one sentence that says why not and what to do."""

from __future__ import annotations

from pathlib import Path

from prep_common.names import closest

MOST_LISTED = 5
"""Files of a folder in a message."""


class UnreadableFile(ValueError):
    """A file that is missing or not a text. The message names it, says why, and what to do."""


def read_text(path: Path) -> str:
    """Return a text in UTF-8, without a byte order mark. Raises UnreadableFile."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from None


def unreadable(path: str | Path, error: OSError | UnicodeDecodeError) -> UnreadableFile:
    """Return the error to raise for a file that could not be opened, read or decoded."""
    return UnreadableFile(f"cannot read {path}: {why_unreadable(Path(path), error)}")


def why_unreadable(path: Path, error: OSError | UnicodeDecodeError) -> str:
    """Return why a file cannot be read, and what to do: "it does not exist; did you mean 'plan.yaml'?"."""
    if isinstance(error, UnicodeDecodeError):
        return f"it is not text in UTF-8 (byte {error.start} is {error.object[error.start]:#04x}); save it as UTF-8"
    if isinstance(error, FileNotFoundError):
        return f"it does not exist; {_instead(path)}"
    if isinstance(error, IsADirectoryError):
        return "it is a folder; name a file in it"
    return f"{error.strerror or error}; use another file"


def _instead(path: Path) -> str:
    folder = path.absolute().parent
    try:
        names = sorted(file.name for file in folder.iterdir() if file.is_file() and file.name[0] != ".")
    except OSError:
        return f"there is no folder {path.parent}"
    where = "this folder" if path.parent == Path() else str(path.parent)
    if (close := closest(path.name, names)) is not None:
        return f"did you mean {str(path.parent / close)!r}?"
    alike = [name for name in names if path.suffix and name.endswith(path.suffix)] or names
    if not names:
        return f"{where} has no files"
    more = ", …" if len(alike) > MOST_LISTED else ""
    return f"{where} has {', '.join(alike[:MOST_LISTED])}{more}"

"""Open and name trace files: never overwrite a file that is not a trace, never share one between two engines."""

from __future__ import annotations

import logging
import os
import zlib
from fcntl import LOCK_EX, LOCK_NB, flock
from io import FileIO
from pathlib import Path

from engine.trace.format import TraceError

logger = logging.getLogger(__name__)


def open_for_writing(path: Path) -> FileIO:
    """Open and lock an empty file. Raises TraceError if the file is not a trace or another engine writes it."""
    try:
        file = FileIO(path, "a+")
    except OSError as error:
        raise TraceError(
            f"cannot write a trace to {path}: {error.strerror or error}. "
            "Choose a file in a folder that exists and that you may write to"
        ) from error
    try:
        flock(file, LOCK_EX | LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise TraceError(
            f"cannot write a trace to {path}: another engine is writing it. Shut that engine down first, or choose "
            "another file"
        ) from error
    except OSError:
        logger.debug("%s is on a file system without locks", path)
    file.seek(0)
    head = file.read(512) if path.is_file() else b""
    if head and not _begins_like_a_trace(head):
        file.close()
        raise TraceError(f"{path} exists and is not a trace, so it was not overwritten. Choose another name")
    if head:
        file.truncate(0)
    file.seek(0, os.SEEK_END)
    return file


def _begins_like_a_trace(head: bytes) -> bool:
    try:
        return zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(head).startswith(b'{"t":"hdr"')
    except zlib.error:
        return False


def unused_path(path: str | os.PathLike[str]) -> Path:
    """The path itself, or `name-2.itrace`, `name-3.itrace` and so on if the file exists.

    A command under `prep trace record` may start several engines.
    """
    wanted = candidate = Path(path)
    number = 2
    while candidate.exists():
        candidate = wanted.with_stem(f"{wanted.stem}-{number}")
        number += 1
    return candidate

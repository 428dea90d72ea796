"""Columns in a file: computed once by a child process, then memory-mapped.

Reading a large trace takes seconds and hundreds of megabytes. A child process does it, so that the server stays
responsive and its memory small, and writes a file that later starts map at once.

    python -m app.debugger.trace_store TRACE COLUMNS MAX_TEXT_BYTES
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import sys
from dataclasses import fields
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from threading import Lock
from time import time
from typing import Any

import numpy as np

from app.debugger.trace_columns import Columns, make_columns
from app.debugger.trace_scan import ContradictionError, scan_file
from app.debugger.trace_text import first_line
from engine.trace.format import TraceError
from prep_common.child_process import JsonChild, ProcessEnded
from prep_common.paths import cache_dir

MAGIC = b"prepcol1"
"""Changes with the layout or meaning of the columns."""
ALIGNMENT = 64
KEPT_BYTES = 2_000_000_000
"""Maximum size of all stores together; the newest are kept."""
LEFT_BEHIND_S = 3600
"""Age after which an unfinished store is removed."""
MAX_TEXT_BYTES = 1_000_000_000
"""Maximum text; of a longer trace only the beginning is read. Reading takes up to 3.7 times the memory of the text."""
REUSE_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    "MALLOC_TOP_PAD_": str(1 << 26),
}
"""Settings for glibc in the child process: reuse freed memory. By default glibc returns large pieces to the kernel,
which clears them again; that took as long as the computation. Other libraries ignore them."""

_READING = Lock()
"""Reads one trace at a time: reading uses two cores, and a second request for the same trace then finds its columns."""

logger = logging.getLogger(__name__)


def text_limit() -> int:
    """Maximum bytes of text that this machine reads of a trace, so that reading fits in three fifths of its memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(MAX_TEXT_BYTES, memory // 6)


def open_columns(path: Path, max_text_bytes: int) -> Columns:
    """The columns of a trace, stored ones if the file has not changed.

    Raises TraceError if it cannot be read, ContradictionError if its records contradict each other.
    """
    state = path.stat()
    key: list[Any] = [str(path.resolve()), state.st_size, state.st_mtime_ns, max_text_bytes]
    stored = cache_dir() / "traces" / f"{sha256(key[0].encode()).hexdigest()[:24]}.columns"
    with _READING:
        columns = load(stored, key)
        if columns is not None:
            return columns
        try:
            stored.parent.mkdir(parents=True, exist_ok=True)
            return _make(path, stored, key)
        except OSError as error:
            logger.info("columns of %s are not kept: %s", path, error)
        with TemporaryDirectory(
            prefix="prep-"
        ) as folder:  # the mapping stays valid after the file is removed
            return _make(path, Path(folder) / stored.name, key)


def _make(path: Path, target: Path, key: list[Any]) -> Columns:
    beside = target.with_name(f".{target.name}.{token_hex(4)}")
    command = [str(path), str(beside), json.dumps(key)]
    try:
        with JsonChild(
            __name__, name="reading", args=command, environment=REUSE_MEMORY, keep_stderr=False
        ) as child:
            said = child.read()
        if "contradiction" in said:
            raise ContradictionError(said["contradiction"])
        if "refused" in said:
            raise TraceError(said["refused"])
        beside.replace(target)
    except ProcessEnded as ended:
        raise TraceError(
            f"reading {path} failed (exit code {ended.exit_code}): the machine may be short of memory. Close other "
            "programs, or record fewer steps"
        ) from ended
    finally:
        beside.unlink(missing_ok=True)
    _prune(target.parent)
    columns = load(target, key)
    if columns is None:
        raise OSError(f"{target} does not hold what was written")
    return columns


def _prune(folder: Path) -> None:
    """Remove the oldest stores and files left by killed processes."""
    files = sorted(((file.stat(), file) for file in folder.iterdir()), key=lambda pair: -pair[0].st_mtime_ns)
    total = 0
    for state, file in files:
        total += state.st_size
        is_left_behind = file.name.startswith(".") and time() - state.st_mtime > LEFT_BEHIND_S
        if is_left_behind or (total > KEPT_BYTES and not file.name.startswith(".")):
            file.unlink(missing_ok=True)


def save(columns: Columns, path: Path, key: list[Any]) -> None:
    """Write one file: MAGIC, the length of a JSON header, the header, the columns."""
    arrays = {
        f.name: np.ascontiguousarray(getattr(columns, f.name)) for f in fields(columns) if f.name != "facts"
    }
    table, offset = [], 0
    for name, values in arrays.items():
        table.append([name, values.dtype.str, offset, len(values)])
        offset += -(-values.nbytes // ALIGNMENT) * ALIGNMENT
    header = json.dumps({"key": key, "size": offset, "table": table, "facts": columns.facts}).encode()
    header += b" " * (-(len(MAGIC) + 8 + len(header)) % ALIGNMENT)
    with open(path, "wb") as file:
        file.write(MAGIC + len(header).to_bytes(8, "little") + header)
        for values in arrays.values():
            file.write(values.tobytes())
            file.write(bytes(-values.nbytes % ALIGNMENT))


def load(path: Path, key: list[Any]) -> Columns | None:
    """Map the columns that `save` wrote for this key; None if the file is missing, for another key or damaged."""
    try:
        with open(path, "rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if data[: len(MAGIC)] != MAGIC:
            return None
        start = len(MAGIC) + 8 + int.from_bytes(data[len(MAGIC) : len(MAGIC) + 8], "little")
        header = json.loads(data[len(MAGIC) + 8 : start])
        if header["key"] != key or len(data) != start + header["size"]:
            return None
        arrays = {
            name: np.frombuffer(data, np.dtype(kind), length, start + offset)
            for name, kind, offset, length in header["table"]
        }
        return Columns(header["facts"], **arrays)
    except (OSError, ValueError, LookupError, TypeError):
        return None


def main(path: str, target: str, key: str) -> dict[str, str]:
    wanted = json.loads(key)
    try:
        header = json.loads(first_line(Path(path)))
        save(make_columns(scan_file(Path(path), wanted[-1]), header), Path(target), wanted)
    except ContradictionError as error:
        return {"contradiction": str(error)}
    except TraceError as error:
        return {"refused": str(error)}
    return {}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))

"""List and open runs. Independent of Streamlit.

A run's id names it in permalinks and on the command line:

    memory-pressure           recorded, ships with prep (`recorded/`)
    mine:chat-burst           recorded by this user (`runs_dir()`)
    file:/home/me/run.itrace  any other file
    live:1                    an engine that runs now (`live/`)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from app.debugger.column_index import ColumnIndex
from app.debugger.column_reader import read_columns
from app.debugger.trace_index import TraceIndex
from app.debugger.trace_scan import ContradictionError
from engine.trace.format import TraceError
from engine.trace.protocol import Trace
from engine.trace.reader import TraceReader
from prep_common.paths import data_dir

RECORDED = Path(__file__).parent / "recorded"
REPLAY_BYTES = 2 << 20
"""Size of the largest file that is replayed when opened: a third of a second."""
MAX_REPLAY_BYTES = 24 << 20
"""Size of the largest file that is replayed if its columns are contradictory: some seconds and half a gigabyte."""


class Run(Protocol):
    """A run that a page shows. Pages read; only `live/` writes."""

    run_id: str

    @property
    def title(self) -> str: ...
    @property
    def is_live(self) -> bool: ...
    @property
    def index(self) -> TraceIndex:
        """The index of the whole run."""

    def reader(self, step: int) -> Trace:
        """The trace around a step, for tables, rows, reasons and tokens."""

    @property
    def warnings(self) -> list[str]:
        """Sentences about what is missing or doubtful."""


class RunEntry(NamedTuple):
    """A run in a list, not opened."""

    run_id: str
    path: Path


@dataclass
class RecordedRun:
    """A trace file."""

    run_id: str
    title: str
    path: Path
    index: TraceIndex
    _reader: Trace
    is_live: bool = False

    def reader(self, step: int) -> Trace:
        return self._reader

    @property
    def warnings(self) -> list[str]:
        return self._reader.warnings


def runs_dir() -> Path:
    """The folder of a user's recordings."""
    return data_dir() / "runs"


def list_runs() -> list[RunEntry]:
    """The shipped runs, then the user's, by name."""
    shipped = [RunEntry(path.stem, path) for path in sorted(RECORDED.glob("*.itrace"))]
    mine = [RunEntry(f"mine:{path.stem}", path) for path in sorted(runs_dir().glob("*.itrace"))]
    return shipped + mine


def path_of(run_id: str) -> Path:
    """The file of a recorded run. Raises TraceError for an unknown id."""
    kind, _, name = run_id.rpartition(":") if not run_id.startswith("file:") else run_id.partition(":")
    if kind == "file":
        path = Path(name)
    elif kind == "mine" and "/" not in name:
        path = runs_dir() / f"{name}.itrace"
    elif not kind and "/" not in name:
        path = RECORDED / f"{name}.itrace"
    else:
        raise TraceError(f"no run is called {run_id!r}: the page Runs lists them")
    try:
        if path.is_dir():
            raise TraceError(f"{path} is a folder: the path of a trace ends with the name of its file")
        is_there = path.is_file()
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}. The page Runs lists all runs") from error
    if not is_there:
        raise TraceError(f"there is no run {run_id!r}: no file {path.name}. The page Runs lists all runs")
    return path


def open_run(run_id: str) -> RecordedRun:
    """Read a recorded run. Raises TraceError if it cannot be read."""
    path = path_of(run_id)
    reader, index = open_trace(path)
    return RecordedRun(run_id, path.stem, path, index, reader)


def open_trace(path: Path, replay_bytes: int = REPLAY_BYTES) -> tuple[Trace, TraceIndex]:
    """Replay a small file; compute the columns of a larger one, once."""
    if path.is_file() and path.stat().st_size > replay_bytes:
        try:
            columns_reader = read_columns(path)
            return columns_reader, ColumnIndex(columns_reader)
        except ContradictionError as error:  # a replay finds how far the trace is valid
            if path.stat().st_size > MAX_REPLAY_BYTES:
                raise TraceError(
                    f"{path} contradicts itself: {error}. It is too long to be replayed here; `prep trace verify` "
                    "finds the step"
                ) from error
    reader = TraceReader(path)
    return reader, TraceIndex(reader)

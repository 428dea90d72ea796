"""A user's runs: keep, rename, delete, record. Independent of Streamlit."""

from __future__ import annotations

import filecmp
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL
from tempfile import TemporaryDirectory
from typing import NamedTuple

from app.debugger.runs import open_run, path_of, runs_dir
from engine.trace.files import unused_path
from engine.trace.format import TraceError
from prep_common.child_process import ChildProcess

GZIP = b"\x1f\x8b"


def keep_upload(name: str, data: bytes | memoryview) -> str:
    """Keep an uploaded trace among the user's runs; returns its id. Raises TraceError if it cannot be opened."""
    if bytes(data[:2]) != GZIP:
        what = "is empty" if not len(data) else "does not begin like a gzip file"
        raise TraceError(f"{name} is not a trace: it {what}. `prep trace record` makes traces")
    with _in_words("kept"):
        path = new_path(name.removesuffix(".itrace"))
        path.write_bytes(data)
    try:
        open_run(f"mine:{path.stem}")
    except TraceError as error:
        path.unlink()
        raise TraceError(str(error).replace(str(path), name)) from error
    except BaseException:
        path.unlink()
        raise
    return f"mine:{path.stem}"


def twin_of(path: Path) -> Path | None:
    """Another file of the same folder with the same bytes, or None. Two forks of a run with the same changes are
    twins: a fork has no wall clock."""
    others = (other for other in sorted(path.parent.glob("*.itrace")) if other != path)
    return next((other for other in others if filecmp.cmp(path, other, shallow=False)), None)


def rename(run_id: str, name: str) -> str:
    """Rename a run; returns its new id. Raises TraceError if the name is taken or not valid."""
    before = _own_path(run_id)
    slug = _slug(name)
    if not slug:
        raise TraceError(f"the name {name!r} is not valid; use letters, digits, - and _")
    after = before.with_name(f"{slug}.itrace")
    if after == before:
        return run_id
    if after.exists():
        raise TraceError(f"a run {slug} exists already; choose another name")
    with _in_words("renamed"):
        before.rename(after)
    return f"mine:{slug}"


def delete(run_id: str) -> None:
    """Remove one of the user's runs. Raises TraceError for a shipped run."""
    path = _own_path(run_id)
    with _in_words("deleted"):
        path.unlink(missing_ok=True)


@contextmanager
def _in_words(done: str) -> Iterator[None]:
    """Turn an OSError into a TraceError with a sentence."""
    try:
        yield
    except OSError as error:
        raise TraceError(
            f"the run cannot be {done} in {runs_dir()}: {error.strerror or error}. PREP_HOME names another folder for "
            "prep's files"
        ) from error


def _own_path(run_id: str) -> Path:
    if not run_id.startswith("mine:"):
        raise TraceError(f"{run_id} is not one of your runs and was not changed")
    return path_of(run_id)


def _slug(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name.strip()).strip("-.")


def new_path(name: str) -> Path:
    """An unused file name among the user's runs."""
    runs_dir().mkdir(parents=True, exist_ok=True)
    return unused_path(runs_dir() / f"{_slug(name) or 'run'}.itrace")


class Recorded(NamedTuple):
    """The result of a recording: a run or an error."""

    run_id: str | None
    error: str = ""


class Recording:
    """`prep demo`, recorded in a child process."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._folder = TemporaryDirectory(prefix="prep-recording-")
        self._path = Path(self._folder.name) / "demo.itrace"
        self._process = ChildProcess(
            "app.cli.main",
            name="the recording",
            args=["trace", "record", "-o", str(self._path), "demo", "--fast"],
            grace_s=10.0,
            keep_stderr=True,
            stop_signal=signal.SIGTERM,
            stdin=DEVNULL,
            stdout=DEVNULL,
        )

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def poll(self) -> Recorded | None:
        """The result, or None while it runs."""
        if self._process.is_running:
            return None
        code = self._process.exit_code()
        # The demo's first engine is the race of part 1; the crowded one is the second.
        crowd = self._path.with_name("demo-2.itrace")
        if code or not crowd.exists():
            last = self._process.last_words() or "it printed nothing"
            self.stop()
            return Recorded(None, f"the recording failed with code {code}: {last}. Try: prep demo")
        try:
            with _in_words("kept"):
                path = new_path("demo")
                path.write_bytes(crowd.read_bytes())
        except TraceError as error:
            return Recorded(None, str(error))
        finally:
            self.stop()
        return Recorded(f"mine:{path.stem}")

    def stop(self) -> None:
        """End it and remove its folder."""
        self._process.close()
        self._folder.cleanup()

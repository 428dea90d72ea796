"""The live runs of this server, shared by its tabs: `live:1`, `live:2`, ... in order of creation.

A run is kept when its engine ends, so that it can be viewed and saved. Engines that were started here end with the
server; attached ones do not.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Sequence
from typing import Any

from app.debugger.live.client import LiveError, LiveRun, LiveView, Port
from app.debugger.live.process import EngineProcess
from app.debugger.live.settings import Arrival, LiveSettings
from app.debugger.own_runs import new_path
from app.debugger.runs import runs_dir

MAX_KEPT = 12
"""Maximum ended runs; older ones are dropped."""

_lock = threading.RLock()
_runs: dict[str, LiveRun] = {}
_processes: dict[str, EngineProcess] = {}
"""Run id -> the process of its engine, if it was started here."""
_numbers = iter(range(1, 10**9))


def live_runs() -> list[LiveRun]:
    """The live runs, the newest first."""
    with _lock:
        return list(reversed(_runs.values()))


def find(run_id: str) -> LiveRun:
    """A run by id. Raises LiveError if there is none."""
    with _lock:
        if run_id in _runs:
            return _runs[run_id]
    raise LiveError(
        f"live run {run_id!r} does not exist any more: live runs end with their workbench. "
        "The page Live starts or attaches to an engine"
    )


def view(run_id: str) -> LiveView:
    """A new view of a run, for one tab."""
    return LiveView(find(run_id))


def process_of(run_id: str) -> EngineProcess | None:
    """The process of a run's engine, if it was started here and not rewound."""
    with _lock:
        return _processes.get(run_id)


def start(settings: LiveSettings, workload: Sequence[Arrival], title: str, **options: Any) -> LiveRun:
    """Start an engine and follow it. Raises LiveError with the engine's own message if it does not start."""
    process = EngineProcess(settings, workload, **options)
    try:
        return _follow(title, process.wait_for_url(), process)
    except BaseException:
        process.stop()
        raise


def attach(url: str) -> LiveRun:
    """Follow an engine of another process on this machine; returns the existing run if it is already followed."""
    port = Port(url)
    with _lock:
        for run in _runs.values():
            if run.end is None and (run.port.number, run.port.token) == (port.number, port.token):
                return run
    return _follow(f"attached to {port}", url, None)


def rewind(run_id: str, step: int) -> tuple[LiveRun, dict[str, Any]]:
    """Restart a run's engine and replay it up to a step. Returns the new run and the result of the replay.

    The earlier run is kept, so that the two can be compared. The new engine has its breakpoints and its pace.
    """
    run, process = find(run_id), process_of(run_id)
    if process is None:
        raise LiveError(
            f"{run_id} cannot be rewound: its engine was not started here, or has been rewound already. Save the run, "
            "and fork the recording on the page Compare"
        )
    before = run.info()
    last = before["step"]
    if step > last:
        had = f"it has run steps 0 to {last}" if last >= 0 else "it has not run any"
        raise LiveError(f"{run_id} cannot go back to step {step}: {had}")
    url, replayed = process.rewind(step)
    new = _follow(f"{run.title}, again from step {step}", url, process)
    if points := before.get("breakpoints"):
        new.tell("breakpoints", breakpoints=points)
    run.continued_as = new.run_id
    with _lock:
        _processes.pop(run_id, None)
    return new, replayed


def stop(run_id: str) -> None:
    """End the engine if it was started here, else only stop following it."""
    run = find(run_id)
    with _lock:
        process = _processes.pop(run_id, None)
    if process is None:
        run.leave("no longer followed here; the engine continues")
    else:
        process.stop()
        run.wait(2)


def save(run_id: str, name: str) -> str:
    """Save a run so far among the user's recordings; returns the id of the recording."""
    try:
        path = new_path(name.strip() or "live")
        find(run_id).save(path)
    except OSError as error:
        raise LiveError(
            f"{run_id} cannot be saved in {runs_dir()}: {error.strerror or error}. PREP_HOME names another folder"
        ) from error
    return f"mine:{path.stem}"


def _follow(title: str, url: str, process: EngineProcess | None) -> LiveRun:
    with _lock:
        run_id = f"live:{next(_numbers)}"
    run = LiveRun(run_id, title, Port(url))
    with _lock:
        _runs[run_id] = run
        if process is not None:
            _processes[run_id] = process
        ended = [name for name, live in _runs.items() if live.end is not None and name not in _processes]
        for name in ended[: max(0, len(ended) - MAX_KEPT)]:
            del _runs[name]
    return run


@atexit.register
def _stop_all() -> None:
    for process in set(_processes.values()):
        process.stop()

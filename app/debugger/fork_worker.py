"""The child process of a fork: a user's scheduler class may loop, exit or crash here without affecting other processes.

    stdin   one line, a JSON object: source, out, at, changes, scheduler_cls, step_limit_s. Then it stays open: its end
            means that the parent has ended; then the process ends and removes its file
    stdout  JSON lines: {"step": 120, "of": 500} now and then, and at last {"result": {...}} or {"error": "..."}

What the scheduler prints goes to stderr.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from engine.trace.fork import fork
from engine.trace.format import TraceError
from engine.trace.reader import TraceReader
from engine.trace.scripted_run import StepTimeLimit
from prep_common.parent_link import JsonLink

REPORT_EVERY_S = 0.1
DEAF_S = 15.0
"""Seconds beyond the limit of a step, after which a scheduler that does not release the interpreter is killed."""


def main() -> None:
    job: dict[str, Any] = {}

    def leave() -> None:
        """End without the parent: remove the unfinished file."""
        if job:
            Path(job["out"]).unlink(missing_ok=True)
        os._exit(1)

    link = JsonLink(leave)
    job |= link.read()
    signal.signal(signal.SIGALRM, _too_long)
    last = 0.0

    def on_step(step: int, of: int) -> None:
        nonlocal last
        signal.setitimer(signal.ITIMER_REAL, job["step_limit_s"])
        now = time.monotonic()
        if now - last > REPORT_EVERY_S:
            last = now
            faulthandler.dump_traceback_later(job["step_limit_s"] + DEAF_S, exit=True)
            link.write({"step": step, "of": of})

    try:
        link.write({"step": 0, "of": 0})
        options = {name: job[name] for name in ("at", "changes", "scheduler_cls")}
        result = fork(TraceReader(job["source"]), job["out"], **options, on_step=on_step)
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        link.write({"result": {**asdict(result), "path": str(result.path)}})
    except TraceError as error:
        link.write({"error": str(error)})


def _too_long(signum: int, frame: object) -> None:
    raise StepTimeLimit


if __name__ == "__main__":
    main()

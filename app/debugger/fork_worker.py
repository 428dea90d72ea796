"""The process in which a fork runs: a scheduler class of the user's own may loop, exit or crash here, and only here.

    stdin   one JSON object: source, out, at, changes, scheduler_cls, step_limit_s
    stdout  JSON lines: {"step": 120, "of": 500} now and then, and at last {"result": {...}} or {"error": "..."}

What the scheduler prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import asdict
from typing import Any

from engine.core.trace_fork import StepTimeLimit, fork
from engine.core.trace_format import TraceError
from engine.core.trace_reader import TraceReader

REPORT_EVERY_S = 0.1


def main() -> None:
    job: dict[str, Any] = json.load(sys.stdin)
    reports = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    signal.signal(signal.SIGALRM, _too_long)
    last = 0.0

    def report(message: dict[str, Any]) -> None:
        reports.write(json.dumps(message) + "\n")
        reports.flush()

    def on_step(step: int, of: int) -> None:
        nonlocal last
        signal.setitimer(signal.ITIMER_REAL, job["step_limit_s"])
        now = time.monotonic()
        if now - last > REPORT_EVERY_S:
            last = now
            report({"step": step, "of": of})

    try:
        report({"step": 0, "of": 0})
        result = fork(
            TraceReader(job["source"]),
            job["out"],
            at=job["at"],
            changes=job["changes"],
            scheduler_cls=job["scheduler_cls"],
            on_step=on_step,
        )
        signal.setitimer(signal.ITIMER_REAL, 0)
        report({"result": {**asdict(result), "path": str(result.path)}})
    except TraceError as error:
        report({"error": str(error)})


def _too_long(signum: int, frame: object) -> None:
    raise StepTimeLimit


if __name__ == "__main__":
    main()

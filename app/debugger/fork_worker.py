"""The process in which a fork runs: a scheduler class of the user's own may loop, exit or crash here, and only here.

    stdin   one line, a JSON object: source, out, at, changes, scheduler_cls, step_limit_s. Then it stays open: its end
            means that nobody waits for the fork any more, and then neither process nor file stays
    stdout  JSON lines: {"step": 120, "of": 500} now and then, and at last {"result": {...}} or {"error": "..."}

What the scheduler prints goes to stderr.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from engine.trace.fork import StepTimeLimit, fork
from engine.trace.format import TraceError
from engine.trace.reader import TraceReader

REPORT_EVERY_S = 0.1
DEAF_S = 15.0
"""Beyond the limit of a step: then a scheduler that keeps the interpreter to itself is ended without asking it."""


def main() -> None:
    job: dict[str, Any] = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_the_asker, args=(Path(job["out"]),), daemon=True).start()
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
            faulthandler.dump_traceback_later(job["step_limit_s"] + DEAF_S, exit=True)
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
        faulthandler.cancel_dump_traceback_later()
        report({"result": {**asdict(result), "path": str(result.path)}})
    except TraceError as error:
        report({"error": str(error)})


def _end_with_the_asker(out: Path) -> None:
    """Whoever asked for the fork was killed: what is half done goes with it."""
    sys.stdin.read()
    out.unlink(missing_ok=True)
    os._exit(1)


def _too_long(signum: int, frame: object) -> None:
    raise StepTimeLimit


if __name__ == "__main__":
    main()

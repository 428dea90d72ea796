"""Run a fork in a child process: progress while it runs, a sentence about its result.

    process = ForkProcess(source, out, at=418, changes={"max_num_batched_tokens": "256"})
    while (outcome := process.poll(0.1)) is None:
        show(process.step, process.of)

A fork may run code of the user's own. It can loop for ever, call sys.exit or crash the interpreter, and this process
goes on (`fork_worker`). Nothing is left behind but the finished file.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.trace.format import TraceError
from prep_common.child_process import JsonChild, ProcessEnded, describe_exit

STEP_LIMIT_S = 10.0
"""Seconds for one step of the scheduler under test; ours takes microseconds."""
GRACE_S = 5.0
"""Additional seconds before a worker that does not react to its timer is killed."""
START_LIMIT_S = 120.0
"""Seconds for reading the recording and importing the class."""


@dataclass(frozen=True)
class ForkOutcome:
    """A finished fork. `path` holds the run, up to the failure if there was one."""

    path: Path
    at: int
    changes: dict[str, Any]
    scheduler_cls: str | None
    num_steps: int
    notes: list[str] = field(default_factory=list)
    failure: str = ""
    """A sentence with the class, the step, and the broken rule."""


class ForkProcess:
    """One fork in a child process."""

    def __init__(
        self,
        source: Path,
        out: Path,
        *,
        at: int = 0,
        changes: dict[str, Any] | None = None,
        scheduler_cls: str | None = None,
        step_limit_s: float = STEP_LIMIT_S,
    ) -> None:
        self.out = out
        self.step = self.of = 0
        """Completed steps, and their estimated total."""
        self._job: dict[str, Any] = {
            "source": str(source),
            "out": str(self._part),
            "at": at,
            "changes": changes or {},
            "scheduler_cls": scheduler_cls,
            "step_limit_s": step_limit_s,
        }
        self._heard = time.monotonic()
        self._child = JsonChild("app.debugger.fork_worker", name="the fork")
        with suppress(ProcessEnded):  # poll() reports the end
            self._child.write(self._job)

    @property
    def pid(self) -> int:
        return self._child.pid

    def poll(self, timeout_s: float = 0.0) -> ForkOutcome | None:
        """The outcome, or None while it runs, after waiting up to `timeout_s`. Raises TraceError if the run cannot be
        forked as asked."""
        try:
            while message := self._child.read(timeout_s):
                timeout_s = 0.0
                if "result" in message:
                    return self._finish(message["result"])
                if "error" in message:
                    self.cancel()
                    raise TraceError(message["error"])
                self._heard = time.monotonic()
                self.step, self.of = message["step"], message["of"]
        except ProcessEnded as ended:
            return self._died(describe_exit(ended.exit_code))
        limit = self._job["step_limit_s"] + GRACE_S if self.of else START_LIMIT_S
        if time.monotonic() - self._heard > limit:
            self._child.kill()
            return self._died(f"did not return within {limit:.0f} s and could not be interrupted")
        return None

    def cancel(self) -> None:
        """End the process and remove its unfinished file."""
        self._child.kill()
        self._part.unlink(missing_ok=True)

    @property
    def _part(self) -> Path:
        """The unfinished file, which no page lists."""
        return self.out.with_name(f"{self.out.name}.part")

    def _finish(self, result: dict[str, Any]) -> ForkOutcome:
        self._child.kill()
        self._part.replace(self.out)
        names = ("at", "changes", "scheduler_cls", "num_steps", "notes")
        failure = result["failure"]["sentence"] if result["failure"] else ""
        return ForkOutcome(self.out, **{name: result[name] for name in names}, failure=failure)

    def _died(self, how: str) -> ForkOutcome:
        """The outcome of a worker that ended without a result: its last reported step."""
        last = self._child.last_words()
        last = f": {last}" if last else ""
        if not self._part.exists():
            raise TraceError(f"the fork {how}{last}")
        self._part.replace(self.out)
        job = self._job
        name = job["scheduler_cls"] or "the scheduler"
        failure = f"{name} {how} about step {self.step}{last}. schedule() and update() return."
        return ForkOutcome(
            self.out, job["at"], job["changes"], job["scheduler_cls"], self.step, failure=failure
        )

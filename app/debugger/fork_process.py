"""Running a fork beside whoever asked for it: progress while it runs, a sentence for whatever becomes of it.

    process = ForkProcess(source, out, at=418, changes={"max_num_batched_tokens": "256"})
    while (outcome := process.poll(0.1)) is None:
        show(process.step, process.of)

A fork may run code of the user's own. It can loop for ever, call sys.exit or crash the interpreter, and this process
goes on (`fork_worker`). Nothing is left behind but the finished file.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from engine.trace.format import TraceError

ROOT = Path(__file__).resolve().parents[2]
STEP_LIMIT_S = 10.0
"""For one step of the scheduler under test; those of ours take microseconds."""
GRACE_S = 5.0
"""Beyond it, until a worker that does not even answer its timer is killed."""
START_LIMIT_S = 120.0
"""For reading the recording and importing the class."""


@dataclass(frozen=True)
class ForkOutcome:
    """A fork that is over. `path` holds the run, up to where it failed if it did."""

    path: Path
    at: int
    changes: dict[str, Any]
    scheduler_cls: str | None
    num_steps: int
    notes: list[str] = field(default_factory=list)
    failure: str = ""
    """One sentence: which class, in which step, what, and which rule it broke."""


class ForkProcess:
    """One fork in a process of its own."""

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
        """Steps done, and of about how many."""
        self._job = {
            "source": str(source),
            "out": str(self._part),
            "at": at,
            "changes": changes or {},
            "scheduler_cls": scheduler_cls,
            "step_limit_s": step_limit_s,
        }
        self._began = False
        self._heard = time.monotonic()
        self._buffer = b""
        self._message: dict[str, Any] = {}
        self._errors = TemporaryFile()
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "app.debugger.fork_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):  # poll() says how it ended
            self._process.stdin.write(json.dumps(self._job).encode() + b"\n")
            self._process.stdin.flush()  # and left open: when this process ends in any way, the worker ends too
        os.set_blocking(self._process.stdout.fileno(), False)

    def poll(self, timeout_s: float = 0.0) -> ForkOutcome | None:
        """The outcome, or None while it runs. Waits for news at most so long. Raises TraceError for what cannot be
        forked as asked."""
        assert self._process.stdout is not None
        select.select([self._process.stdout], [], [], timeout_s)
        ended = self._process.poll() is not None
        self._read()
        if "result" in self._message:
            return self._finish(self._message["result"])
        if "error" in self._message:
            self.cancel()
            raise TraceError(self._message["error"])
        if ended:
            return self._died(f"ended its process with code {self._process.returncode}")
        limit = self._job["step_limit_s"] + GRACE_S if self.of else START_LIMIT_S
        if time.monotonic() - self._heard > limit:
            self._kill()
            return self._died(f"did not return within {limit:.0f} s and could not be interrupted")
        return None

    def cancel(self) -> None:
        """End it now and remove what it has written."""
        self._kill()
        self._part.unlink(missing_ok=True)

    @property
    def _part(self) -> Path:
        """Where the file grows: not yet a run that anybody lists."""
        return self.out.with_name(f"{self.out.name}.part")

    def _read(self) -> None:
        assert self._process.stdout is not None
        while data := self._process.stdout.read(1 << 16):
            self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            self._message = json.loads(line)
            self._heard = time.monotonic()
            self.step = self._message.get("step", self.step)
            self.of = self._message.get("of", self.of)

    def _finish(self, result: dict[str, Any]) -> ForkOutcome:
        self._kill()
        self._part.replace(self.out)
        failure = result["failure"]["sentence"] if result["failure"] else ""
        return ForkOutcome(
            self.out,
            result["at"],
            result["changes"],
            result["scheduler_cls"],
            result["num_steps"],
            result["notes"],
            failure,
        )

    def _died(self, how: str) -> ForkOutcome:
        """No last word: what is known is the last step that was heard of."""
        last = self._last_words()
        if not self._part.exists():
            raise TraceError(f"the fork {how}{last}")
        self._part.replace(self.out)
        name = self._job["scheduler_cls"] or "the scheduler"
        failure = f"{name} {how} about step {self.step}{last}. schedule() and update() return."
        job = self._job
        return ForkOutcome(
            self.out, job["at"], job["changes"], job["scheduler_cls"], self.step, failure=failure
        )

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read()[-4000:].decode(errors="replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""

    def _kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

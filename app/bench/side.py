"""The parent's half of a comparison: a side's process, its questions and answers, and its end.

Every side runs in a process group of its own: Ctrl-C in a terminal reaches only us, and closing a side ends
whatever it has started. The child's half is `sides/side_protocol.py`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryFile
from time import perf_counter
from types import TracebackType
from typing import Any, Self

import psutil

SIDES = Path(__file__).parent / "sides"
ERROR_LINES = 12
LEAVE_S = 5.0
"""How long a side may take to leave by itself before it is killed."""


class SideDied(RuntimeError):
    """A side's process ended before it answered; the message holds the end of what it wrote to stderr."""


@dataclass(frozen=True)
class SideSpec:
    """How to start one side."""

    name: str
    python: str
    program: Path
    engine: dict[str, Any] = field(default_factory=dict)
    """Engine arguments of this side."""


@dataclass(frozen=True)
class Answer:
    """What one request to a side came to. CPU seconds are those of all its threads and of the processes it started."""

    result: Any
    seconds: float
    cpu_seconds: float
    idle_seconds: float
    """Between the answer before this one and the question."""
    idle_cpu_seconds: float
    peak_rss_bytes: int


def prep_spec(engine: dict[str, Any], *, name: str = "prep") -> SideSpec:
    """Our engine, in this Python."""
    return SideSpec(name, sys.executable, SIDES / "prep_side.py", engine)


def vllm_spec(python: str, engine: dict[str, Any]) -> SideSpec:
    """Real vLLM, in the Python of its own environment."""
    return SideSpec("vLLM", python, SIDES / "vllm_side.py", engine)


class Side:
    """A running side. Creating it starts the process and returns at once; `wait_ready` loads the engine."""

    def __init__(self, spec: SideSpec, model: str, *, threads: int) -> None:
        self.spec = spec
        self._stderr = TemporaryFile("w+", errors="replace")
        self._started = perf_counter()
        self._process = subprocess.Popen(
            [spec.python, str(spec.program), json.dumps({"model": model, "engine": spec.engine})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            start_new_session=True,
        )

    def wait_ready(self) -> dict[str, Any]:
        """Wait until the engine is loaded; returns what it says of itself and `load_seconds`, since the start."""
        return {**self._read(), "load_seconds": self.age()}

    def ask(self, what: str, prompts: Sequence[Any], max_tokens: Sequence[int]) -> Answer:
        """One request; blocks until it is answered. Processor time is that of the side's whole process tree."""
        cpu_before = self._cpu_seconds()
        try:
            self._process.stdin.write(
                json.dumps({"do": what, "prompts": list(prompts), "max_tokens": list(max_tokens)}) + "\n"
            )
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._died() from None
        answer = Answer(**self._read())
        # The system counts a tree in hundredths of a second; the side itself in less, but not what it started.
        whole_tree = self._cpu_seconds() - cpu_before
        return replace(answer, cpu_seconds=max(answer.cpu_seconds, whole_tree))

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Its processes get no processor inside the block: some engines poll for work, and would take a core from
        the one that is measured."""
        self._signal_group(signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal_group(signal.SIGCONT)

    def age(self) -> float:
        """Seconds since the process was started."""
        return perf_counter() - self._started

    def close(self) -> None:
        """End the process and all it has started."""
        if self._process.stdin and not self._process.stdin.closed:
            try:
                self._process.stdin.close()
            except BrokenPipeError:
                pass
        try:
            self._process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            pass
        finally:  # also when a second Ctrl-C ends the waiting
            self._kill_group()
            self._process.wait()
            self._process.stdout.close()
            self._stderr.close()

    def kill(self) -> None:
        """End the process group without waiting for what it is doing."""
        self._kill_group()
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close() if error_type is None else self.kill()

    def _read(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line.endswith("\n"):
            raise self._died()
        return json.loads(line)

    def _died(self) -> SideDied:
        code = self._process.wait()
        self._stderr.seek(0)
        lines = [line for line in self._stderr.read().splitlines() if line.strip()][-ERROR_LINES:]
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        said = "\n".join(f"  {line}" for line in lines) or "  (nothing on stderr)"
        return SideDied(f"{self.spec.name} ended {how}. The end of what it wrote:\n{said}")

    def _kill_group(self) -> None:
        self._signal_group(signal.SIGKILL)

    def _cpu_seconds(self) -> float:
        try:
            process = psutil.Process(self._process.pid)
            times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
        except psutil.NoSuchProcess:  # what is wrong is told when the answer is read
            return 0.0
        return sum(time.user + time.system for time in times)

    def _signal_group(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            pass

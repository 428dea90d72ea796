"""The parent's half of a comparison: start a side's process, send it requests, end it.

Closing a side ends every process that it has started. The child's half is `sides/side_protocol.py`.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil

from app.bench.sides.side_protocol import peak_rss_bytes
from prep_common.child_process import PYTHON_M, JsonChild, ProcessEnded, describe_exit

SIDES = Path(__file__).parent / "sides"
ERROR_LINES = 12


class SideDied(ProcessEnded):
    """A side's process ended before it answered; the message holds the end of what it wrote to stderr."""


@dataclass(frozen=True)
class SideSpec:
    """Command that starts one side."""

    name: str
    python: str
    program: Path
    engine: dict[str, Any] = field(default_factory=dict)
    """Engine arguments of this side."""
    is_server: bool = False
    """Whether it is reached over HTTP: it tells nothing about its inside."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables of its process."""
    patience_s: float = 900.0
    """Seconds to wait for any answer: vLLM compiles the model at its start."""


@dataclass(frozen=True)
class Answer:
    """Result of one request to a side. CPU seconds and memory cover all its threads and child processes."""

    result: Any
    seconds: float
    cpu_seconds: float
    idle_seconds: float
    """Time between the previous answer and this request."""
    idle_cpu_seconds: float
    peak_rss_bytes: int


def prep_spec(engine: dict[str, Any], *, name: str = "prep") -> SideSpec:
    """Our engine, in this Python."""
    return SideSpec(name, sys.executable, SIDES / "prep_side.py", engine)


def vllm_spec(python: str, engine: dict[str, Any]) -> SideSpec:
    """vLLM itself, in the Python of its environment."""
    return SideSpec("vLLM", python, SIDES / "vllm_side.py", engine)


def server_spec(command: Sequence[str], engine: dict[str, Any], *, name: str) -> SideSpec:
    """A server that this command starts, with its client."""
    return SideSpec(name, sys.executable, SIDES / "server_side.py", {**engine, "server": list(command)}, True)


PREP_SERVER = (*PYTHON_M, "app.cli.main", "serve")


class Side(JsonChild):
    """A running side. Creating it starts the process and returns at once; `wait_ready` loads the engine."""

    def __init__(self, spec: SideSpec, model: str, *, threads: int) -> None:
        self.spec = spec
        self._started = perf_counter()
        command = [spec.python, str(spec.program), json.dumps({"model": model, "engine": spec.engine})]
        environment = {"OMP_NUM_THREADS": str(threads), **spec.environment}
        super().__init__(command, name=spec.name, environment=environment)

    def wait_ready(self) -> dict[str, Any]:
        """Wait until the engine is loaded; return its description and `load_seconds` since the start."""
        return {**self._answer("load"), "load_seconds": self.age()}

    def ask(self, what: str, prompts: Sequence[Any], max_tokens: Sequence[int]) -> Answer:
        """Send one request and wait for the answer. Processor time covers the side's whole process tree."""
        cpu_before = self._cpu_seconds()
        self.write({"do": what, "prompts": list(prompts), "max_tokens": list(max_tokens)})
        answer = Answer(**self._answer(what))
        # The system counts a tree in hundredths of a second; the side itself in less, but not what it started.
        whole_tree = self._cpu_seconds() - cpu_before
        peak = sum(peak_rss_bytes(child.pid) for child in self._children())
        return replace(
            answer,
            cpu_seconds=max(answer.cpu_seconds, whole_tree),
            peak_rss_bytes=answer.peak_rss_bytes + peak,
        )

    def _answer(self, what: str) -> dict[str, Any]:
        """Read an answer. Raises SideDied if the process ends, or is silent for longer than `patience_s`."""
        answer: dict[str, Any] | None = self.read(self.spec.patience_s)
        if answer is not None:
            return answer
        said = self._said()
        self.kill()
        why = f"did not {what} within {self.spec.patience_s:.0f} s and was ended. {said}"
        raise SideDied(self.name, None, why)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop its processes inside the block: some engines poll for work and would take a core from
        the one that is measured."""
        self.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.send_signal(signal.SIGCONT)

    def age(self) -> float:
        """Return the seconds since the process was started."""
        return perf_counter() - self._started

    def ended(self) -> SideDied:
        code = self.exit_code()
        return SideDied(self.name, code, f"{describe_exit(code)}. {self._said()}")

    def _said(self) -> str:
        said = "\n".join(f"  {line}" for line in self.last_words(ERROR_LINES).splitlines())
        return f"The end of what it wrote:\n{said or '  (nothing on stderr)'}"

    def _cpu_seconds(self) -> float:
        try:
            process = psutil.Process(self._process.pid)
            times = [p.cpu_times() for p in (process, *self._children())]
        except psutil.NoSuchProcess:  # reading the answer reports the error
            return 0.0
        return sum(time.user + time.system for time in times)

    def _children(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

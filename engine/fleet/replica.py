"""One replica of a fleet: a server in its own process, and how far it is.

starting --ready--> warm --routed--> ready --no new requests--> draining --idle--> gone
                     ^                                              |
                     '------------- the warm pool has room ---------'
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil

from engine.server.child_server import PREP, ChildServer

FRAME = " │╭╮╰╯─|+-"
State = Literal["starting", "warm", "ready", "draining"]


@dataclass
class Replica:
    """A server process that this fleet started."""

    name: str
    server: ChildServer
    state: State = "starting"
    began: float = field(default_factory=time.monotonic)
    start_s: float | None = None
    """Seconds from the start of the process to its first sign of health."""
    stages: dict[str, float] = field(default_factory=dict)
    """Seconds of the start by stage, as the server told them."""
    memory: int = 0
    """Bytes that the process and its children hold alone, measured when it became ready."""
    is_kept: bool = False
    """A roll counts on it: it is not stopped as superfluous."""

    def refusal(self) -> str:
        """Return the last error that the server wrote, in one line without the frame that typer draws."""
        lines = [line.strip(FRAME) for line in self.server.log_tail(8).splitlines()]
        told = [number for number, line in enumerate(lines) if line.startswith(("error:", "Invalid value"))]
        text = " ".join(filter(None, lines[told[-1] :])) if told else (lines or [""])[-1]
        return text.removeprefix("error: ")

    def measure_memory(self) -> None:
        """Sum the memory of its processes that is shared with no other process."""
        try:
            process = psutil.Process(self.server.pid)
            family = [process, *process.children(recursive=True)]
            self.memory = sum(int(member.memory_full_info().uss) for member in family)
        except psutil.Error:  # it just ended, or the system does not tell
            self.memory = 0


def start(
    name: str, words: Sequence[str], folder: Path, *, threads: int, grace_s: float, module: str = PREP
) -> Replica:
    """Start a server without waiting for it. Its output goes to a file in `folder`."""
    environment = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    server = ChildServer(
        module,
        args=list(words),
        name=f"replica {name}",
        log=folder / f"{name}.log",
        wait=False,
        grace_s=grace_s,
        environment=environment,
    )
    return Replica(name, server)

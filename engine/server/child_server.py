"""A server in a process of its own: start it, wait until it answers, end it. A module ends when this process does.

    with ChildServer(PREP, args=["serve", "shop", "--num-gpu-blocks-override", "64"], name="the server") as server:
        httpx.get(f"{server.url}/metrics")

Any server that has the option `--port` will do: `prep serve`, `prep gateway run`, `vllm serve`.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from prep_common.child_process import ChildProcess, ProcessEnded

PREP = "app.cli.main"
"""Module of the `prep` command."""
PATIENCE_S = 120.0
"""A server with a model of the repository answers after about 4 s."""
_PAUSE_S = 0.05


class ChildServer(ChildProcess):
    """A process that listens on 127.0.0.1. It gets SIGTERM at the end, and finishes its requests.

    If this process is killed, a module ends at once; a whole command goes on.
    """

    def __init__(
        self,
        command: str | Sequence[str],
        *,
        name: str,
        args: Sequence[str] = (),
        path: str = "/health",
        port: int = 0,
        log: Path | None = None,
        patience_s: float = PATIENCE_S,
        wait: bool = True,
        **options: Any,
    ) -> None:
        """Start the server, and return when GET `path` is 200.

        Args:
            command: a module, or a whole command; `--port` is added.
            name: subject of messages about it.
            args: of the module.
            path: answers 200 once the server takes requests.
            port: to listen on; 0 takes a free one.
            log: file that its output is appended to; else it goes where this process's output goes.
            patience_s: seconds until it is given up and killed.
            wait: return at once, and leave it to the caller to ask `is_ready`.
            options: of `ChildProcess`.

        Raises:
            ProcessEnded: it ended, or does not answer in time.
        """
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log, self._path = log, path
        address = ["--port", str(self.port)]
        if isinstance(command, str):
            options |= {"args": [command, *args, *address], "stdin": subprocess.PIPE}
            command = "prep_common.parent_link"
        else:
            command = [*command, *address]
        defaults: dict[str, Any] = {"stop_signal": signal.SIGTERM, "stdin": subprocess.DEVNULL}
        with ExitStack() as opened:
            if log is not None:
                stream = opened.enter_context(log.open("ab"))
                defaults |= {"stdout": stream, "stderr": subprocess.STDOUT}
            super().__init__(command, name=name, **(defaults | options))
        if wait:
            self.wait_until_ready(patience_s)

    def is_ready(self) -> bool:
        """Ask whether it takes requests."""
        try:
            return httpx.get(f"{self.url}{self._path}", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    def wait_until_ready(
        self, patience_s: float = PATIENCE_S, tell: Callable[[float], None] | None = None
    ) -> None:
        """Return when it takes requests. `tell` is called with the seconds waited so far.

        Raises:
            ProcessEnded: it ended, or does not answer in time; it is killed.
        """
        start = time.monotonic()
        while not self.is_ready():
            waited = time.monotonic() - start
            if not self.is_running:
                raise ProcessEnded(self.name, self.exit_code(), last_words=self.log_tail())
            if waited > patience_s:
                self.kill()
                raise ProcessEnded(
                    self.name, None, f"did not answer within {patience_s:g} s", self.log_tail()
                )
            if tell is not None:
                tell(waited)
            time.sleep(_PAUSE_S)

    def log_tail(self, num_lines: int = 5) -> str:
        """Return the last lines of its log, if it has one."""
        if self.log is None:
            return ""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(line for line in lines[-num_lines:] if line.strip())


def free_port() -> int:
    """Return a port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])

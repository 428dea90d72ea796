"""The child's side of `prep_common.child_process`. A child ends when its parent does.

python -m prep_common.parent_link MODULE ARGUMENTS     runs any module, and ends it when stdin closes
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any


class JsonLink:
    """JSON records from stdin and to stdout. What libraries print goes to stderr."""

    def __init__(self, on_hang_up: Callable[[], None] | None = None) -> None:
        """on_hang_up: called in another thread when the parent has hung up; by default the process ends at once."""
        self.is_open = True
        self._on_hang_up = on_hang_up or _leave
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._records: SimpleQueue[Any] = SimpleQueue()
        Thread(target=self._listen, daemon=True).start()

    def write(self, record: Any) -> None:
        """Write a record."""
        self._out.write(json.dumps(record) + "\n")
        self._out.flush()

    def read(self, timeout: float | None = None) -> Any:
        """Return the next record, or None if none comes within so many seconds."""
        try:
            return self._records.get(timeout=timeout)
        except Empty:
            return None

    def wake(self) -> None:
        """Let `read` return None now, or the next time it is called."""
        self._records.put(None)

    def _listen(self) -> None:
        """Read without sys.stdin, whose lock would keep the interpreter from ending."""
        buffer = b""
        while data := os.read(0, 1 << 16):
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                self._records.put(json.loads(line))
        self.is_open = False
        self.wake()
        self._on_hang_up()


def serve_pipe(serve: Callable[[Connection], None]) -> None:
    """Call `serve` with the connection to the parent, then end the process; a parent that hangs up ends it too."""
    # Ctrl-C reaches every process of a terminal; the parent decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        serve(Connection(int(sys.argv[1])))
    except (EOFError, ConnectionError):  # the parent is gone in the middle of a call
        pass
    _leave()


def run_module(name: str, args: list[str]) -> None:
    """Run a module that does not read stdin as `python -m` would; a parent that hangs up ends the process."""

    def watch() -> None:
        while os.read(0, 1 << 10):
            pass
        _leave()

    Thread(target=watch, daemon=True).start()
    sys.argv[1:] = args
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _leave() -> None:
    """End at once: what libraries do at the end of a process may wait for peers that are gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    run_module(sys.argv[1], sys.argv[2:])

"""Guests that start with large libraries already imported: the checker's side of `prep_common.guest.nursery`."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from prep_common.child_process import ROOT, ChildProcess
from prep_common.sandbox import places
from prep_common.sandbox.errors import GuestStopped

START_SECONDS = 120.0
MAIN = str(ROOT / "prep_common" / "guest" / "main.py")
_ready: dict[tuple[str, ...], Nursery] = {}
_starting = threading.Lock()


def is_useful(imports: Sequence[str]) -> bool:
    """Return whether a guest should come from a nursery: its imports are slow, and a process may fork."""
    # Not platforms.can_fork: a change of any file that platforms names would then reach all tests of the sandbox.
    return bool(imports) and sys.platform == "linux"


def nursery(imports: Sequence[str], environment: Mapping[str, str]) -> Nursery:
    """Return the running nursery with these imports; the first call starts it."""
    key = tuple(imports)
    with _starting:
        running = _ready.get(key)
        if running is None or not running.is_running:
            running = _ready[key] = Nursery(key, environment)
        return running


class Nursery(ChildProcess):
    """The process that forks guests. It ends when this process ends."""

    def __init__(self, imports: Sequence[str], environment: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(START_SECONDS)
        self._lock = threading.Lock()
        with theirs:
            command = [
                sys.executable,
                "-I",
                "-S",
                "-u",
                MAIN,
                str(ROOT),
                str(os.getpid()),
                str(theirs.fileno()),
            ]
            super().__init__(
                command,
                name="the nursery of guests",
                environment=environment,
                inherit_environment=False,
                pass_fds=[theirs.fileno()],
                stdin=-3,  # subprocess.DEVNULL
                grace_s=0.0,
            )
        self.ask({"do": "import", "path": places.import_path(), "names": list(imports)})

    def ask(self, message: object, fds: Sequence[int] = ()) -> int | None:
        """Send a message and return the answer. Raises GuestStopped if the nursery is gone."""
        try:
            with self._lock:
                socket.send_fds(self._socket, [json.dumps(message).encode()], fds)
                data = b""
                while not data.endswith(b"\n"):
                    part = self._socket.recv(100)
                    if not part:
                        raise OSError
                    data += part
        except OSError:
            raise GuestStopped("was stopped: the process that starts programs ended") from None
        answer = json.loads(data)
        return answer if isinstance(answer, int) else None


class NurseryGuest:
    """A guest process that a nursery has forked."""

    def __init__(
        self, owner: Nursery, folder: Path, environment: Mapping[str, str], fds: Sequence[int]
    ) -> None:
        self._owner = owner
        self._code: int | None = None
        pid = owner.ask({"do": "fork", "folder": str(folder), "environment": dict(environment)}, fds)
        assert pid is not None
        self.pid = pid

    def exit_code(self, timeout: float | None = 1.0) -> int | None:
        """Return the exit code, or None if it does not end within a second."""
        if self._code is None:
            self._code = self._owner.ask({"do": "wait", "pid": self.pid})
        return self._code

    def kill(self) -> None:
        """End the process now. A second call does nothing."""
        if self.pid:
            self._code, self.pid = self._owner.ask({"do": "end", "pid": self.pid}), 0

"""A process that has imported large libraries and forks guests: torch once per checker instead of once per guest.

It runs no learner code. It imports, stays single-threaded, and answers JSON over a socket:

    {"do": "import", "path": [...], "names": [...]}            -> null
    {"do": "fork", "folder": ..., "environment": {...}} + fds  -> process id
    {"do": "wait", "pid": 7}                                   -> exit code, null after a second
    {"do": "end", "pid": 7}                                    -> exit code, after a kill

It ends when the checker hangs up, not with the thread of the checker that started it.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

from prep_common.guest import limits

_PATIENCE_S = 1.0


def run(end: int, serve: Callable[[int, int], None]) -> None:
    """Answer until the checker hangs up."""
    link = socket.socket(fileno=end)
    ended: dict[int, int] = {}
    while True:
        data, fds, _, _ = socket.recv_fds(link, 1 << 16, 3)
        if not data:
            return
        asked = json.loads(data)
        if asked["do"] == "fork":
            parent = os.getpid()
            answer: Any = os.fork()
            if answer == 0:
                link.close()
                _be_guest(asked, fds, parent, serve)
            for fd in fds:
                os.close(fd)
        elif asked["do"] == "import":
            _import(asked)
            answer = None
        else:
            answer = _exit_code(asked["pid"], ended, kill=asked["do"] == "end")
        link.sendall(json.dumps(answer).encode() + b"\n")


def _import(asked: dict[str, Any]) -> None:
    sys.path[:] = [*sys.path, *asked["path"]]
    for name in asked["names"]:
        with suppress(ImportError):  # the guest reports it
            import_module(name)
    gc.freeze()


def _be_guest(asked: dict[str, Any], fds: list[int], parent: int, serve: Callable[[int, int], None]) -> None:
    """Become a guest: a session, pipes and a folder of its own."""
    try:
        limits.end_with(parent)
        os.setsid()
        os.environ.update(asked["environment"])
        os.chdir(asked["folder"])
        read, write, output = fds
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        serve(read, write)
    finally:
        os._exit(1)


def _exit_code(pid: int, ended: dict[int, int], *, kill: bool) -> int | None:
    if pid in ended:
        return ended.pop(pid) if kill else ended[pid]
    if kill:
        os.kill(pid, signal.SIGKILL)
        _end_group(pid)
    until = time.monotonic() + _PATIENCE_S
    while True:
        reaped, status = os.waitpid(pid, 0 if kill else os.WNOHANG)
        if reaped:
            code = os.waitstatus_to_exitcode(status)
            if not kill:
                _end_group(pid)
                ended[pid] = code
            return code
        if time.monotonic() > until:
            return None
        time.sleep(0.005)


def _end_group(pid: int) -> None:
    """Kill what a guest started. It has no group if it was killed before setsid."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)

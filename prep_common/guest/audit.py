"""An audit hook of Python: refuse files outside of the lists, processes, sockets, and libraries.

It cannot be removed, and it exists on every platform. It does not hold against machine code; Landlock protects files
against that where the kernel has it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

_REFUSED = {
    "os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.startfile", "os.kill",
    "os.killpg", "signal.pthread_kill", "subprocess.Popen", "pty.spawn", "socket.connect", "socket.bind",
    "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "gc.get_objects",
    "gc.get_referrers", "gc.get_referents", "sys._current_frames", "sys._current_exceptions", "resource.setrlimit",
    "resource.prlimit", "syslog.syslog", "syslog.openlog", "ctypes.string_at",
}  # fmt: skip
_CHANGES = {
    "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod",
    "os.chown", "os.chflags", "os.utime", "os.setxattr", "os.removexattr", "os.mkfifo", "os.mknod", "sqlite3.connect",
}  # fmt: skip
_LISTS = {"os.listdir", "os.scandir"}
_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def confine(readable: Iterable[str], listable: Iterable[str], writable: Iterable[str]) -> str:
    """Confine this process for ever, see `landlock.confine`. Return "audit hook"."""
    resolve, path_of, unix = os.path.realpath, os.fspath, 1
    writes = tuple(map(resolve, writable))
    reads = (*map(resolve, readable), *writes)
    lists = (*map(resolve, listable), *reads)

    def inside(path: Any, trees: tuple[str, ...]) -> bool:
        if type(path) is int or path is None:
            return True
        name = path_of(path)
        place = resolve(name.decode(errors="surrogateescape") if isinstance(name, bytes) else name)
        return any(place == tree or place.startswith(tree + "/") for tree in trees)

    def allowed(event: str, args: tuple[Any, ...]) -> bool:
        if event == "open":
            path, mode, flags = args
            write = flags & _TO_WRITE if isinstance(flags, int) else set(mode or "") & set("wax+")
            return inside(path, writes if write else reads)
        if event in _LISTS:
            return inside(args[0], lists)
        if event in _CHANGES:
            return all(inside(path, writes) for path in args[:2] if isinstance(path, str | bytes))
        if event == "ctypes.dlopen":
            return args[0] is not None and inside(args[0], writes)
        if event == "ctypes.dlsym":
            return (
                inside(getattr(args[0], "_name", "/"), writes) and getattr(args[0], "_name", None) is not None
            )
        if event == "socket.__new__":
            return bool(args[1] == unix)
        return event not in _REFUSED

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if not allowed(event, args):
            detail = f" {args[0]!r:.120}" if event == "open" or event in _LISTS | _CHANGES else ""
            raise PermissionError(f"the sandbox refuses {event}{detail}")

    sys.addaudithook(hook)
    return "audit hook"

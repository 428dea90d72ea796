"""Linux Landlock: read some folders, write one, no TCP, no signals to processes outside.

It covers contents and names of files. Mode, owner, times and extended attributes of a file outside can be changed.

Source: Documentation/userspace-api/landlock.rst of the kernel. It needs no privileges.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterable

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_RUN, _READ_FILE, _READ_DIR, _WRITE_FILE, _TRUNCATE = 1 << 0, 1 << 2, 1 << 3, 1 << 1, 1 << 14
_NO_NEW_PRIVS = 38


def abi() -> int:
    """Return the version of Landlock in this kernel; 0 without."""
    if sys.platform != "linux":
        return 0
    return max(0, int(_libc().syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1))))


def confine(
    readable: Iterable[str], listable: Iterable[str], writable: Iterable[str], runnable: Iterable[str] = ()
) -> str:
    """Confine this process for ever. Return what is on: "landlock ABI 7"; "" without Landlock.

    Args:
        readable: files and folders. listable: folders whose names may be listed. writable: files and folders.
        runnable: files and folders with programs that may be started.
    """
    version = abi()
    if not version:
        return ""
    files = (1 << (13 if version < 2 else 14 if version < 3 else 15 if version < 5 else 16)) - 1
    attribute = struct.pack("QQQ", files, 3, 3)[: 8 if version < 4 else 16 if version < 6 else 24]
    libc = _libc()
    ruleset = libc.syscall(_CREATE, attribute, ctypes.c_size_t(len(attribute)), ctypes.c_uint32(0))
    if ruleset < 0:
        return ""
    try:
        rules = [(path, _READ_FILE | _READ_DIR) for path in readable]
        rules += [(path, _READ_DIR) for path in listable]
        rules += [(path, files & ~1) for path in writable]
        rules += [(path, _RUN | _READ_FILE | _READ_DIR) for path in runnable]
        for path, rights in rules:
            _allow(libc, ruleset, path, rights & files)
        libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
        restricted = libc.syscall(_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)
    return "" if restricted else f"Landlock ABI {version}"


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # it does not exist here
        return
    try:
        if not os.path.isdir(path):
            rights &= _RUN | _READ_FILE | _WRITE_FILE | _TRUNCATE
        if rights:
            rule = struct.pack("=Qi", rights, place)
            libc.syscall(_ADD, ctypes.c_int(ruleset), ctypes.c_int(1), rule, ctypes.c_uint32(0))
    finally:
        os.close(place)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)

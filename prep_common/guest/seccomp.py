"""Linux seccomp: no new process, no other program, no socket, no signal to another process.

Threads are allowed. A filter holds for ever, and for every thread.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

_EPERM, _ENOSYS = 1, 38
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _ANY_BIT, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_CLONE_THREAD = 0x10000
_MACHINES = {"x86_64": (0xC000003E, 317), "aarch64": (0xC00000B7, 277)}
"""Audit name of the architecture, and the number of seccomp(2)."""

_REFUSED = {
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281), "socket": (41, 198),
    "tkill": (200, 130), "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "mount": (165, 40), "umount2": (166, 39), "chroot": (161, 51), "unshare": (272, 97), "setns": (308, 268),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "add_key": (248, 217),
    "request_key": (249, 218), "keyctl": (250, 219), "io_uring_setup": (425, 425), "pidfd_send_signal": (424, 424),
    "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "memfd_create": (319, 279), "shmget": (29, 194),
    "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180), "setrlimit": (160, 164),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "open_by_handle_at": (304, 265),
    "setsid": (112, 157), "setpgid": (109, 154),
}  # fmt: skip
_CLONE, _CLONE3, _KILL, _TGKILL = (56, 220), 435, (62, 129), (234, 131)
_PRLIMIT, _PRCTL = (302, 261), (157, 167)
_X32 = 0x40000000


def is_available() -> bool:
    """Return whether this kernel has filters, and we know its system calls."""
    return (
        sys.platform == "linux"
        and platform.machine() in _MACHINES
        and os.path.exists("/proc/sys/kernel/seccomp/actions_avail")
    )


def confine() -> str:
    """Confine this process for ever. Return "seccomp", or "" without it."""
    if not is_available():
        return ""
    machine = platform.machine()
    code = _program(machine)
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    libc.prctl(38, 1, 0, 0, 0)  # no new privileges: without it only root may install a filter
    for flags in (1, 0):  # 1: for all threads
        if libc.syscall(_MACHINES[machine][1], ctypes.c_uint(1), ctypes.c_uint(flags), program) == 0:
            return "seccomp"
    return ""


def _program(machine: str) -> bytes:
    """Return the filter in BPF: each block looks at one system call and falls through to the next."""
    column = list(_MACHINES).index(machine)
    refuse, allow = (_RETURN, 0, 0, _ERRNO | _EPERM), (_RETURN, 0, 0, _ALLOW)
    own = os.getpid()
    lines = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, _MACHINES[machine][0]), refuse, (_LOAD, 0, 0, 0)]
    if machine == "x86_64":
        lines += [(_AT_LEAST, 0, 1, _X32), refuse]
    for numbers in _REFUSED.values():
        if (number := numbers[column]) is not None:
            lines += [(_EQUAL, 0, 1, number), refuse]
    lines += [(_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _ERRNO | _ENOSYS)]  # libc then uses clone
    lines += [(_EQUAL, 0, 4, _CLONE[column]), _argument(0), (_ANY_BIT, 1, 0, _CLONE_THREAD), refuse, allow]
    for number in (_KILL[column], _TGKILL[column]):
        lines += [(_EQUAL, 0, 4, number), _argument(0), (_EQUAL, 1, 0, own), refuse, allow]
    lines += [(_EQUAL, 0, 4, _PRCTL[column]), _argument(0), (_EQUAL, 0, 1, 1), refuse, allow]
    lines += [(_EQUAL, 0, 6, _PRLIMIT[column])]
    lines += [_argument(2), (_EQUAL, 0, 2, 0), _argument(2, 4), (_EQUAL, 1, 0, 0), refuse, allow]
    lines += [allow]
    return b"".join(struct.pack("HBBI", *line) for line in lines)


def _argument(index: int, offset: int = 0) -> tuple[int, int, int, int]:
    return (_LOAD, 0, 0, 16 + 8 * index + offset)

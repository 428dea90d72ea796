"""Compile the C++ kernels in a detached process, while this one computes with torch.

    first start   takes the lock, starts a child that inherits it      torch until the process ends
    meanwhile     the lock is taken: no second child                   torch until the process ends
    next start    <cache>/kernels/<key>/kernels.so is whole            C++

A process never changes from torch to C++: the two round differently, and a request's output must not depend on the
second in which it arrives. The lock belongs to the open file: it is free once the child has ended, in whatever way.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from kernels.cpu.compile import BuildError, Target, no_place
from prep_common.processors import num_processors

if sys.platform != "win32":
    import fcntl

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = "PREP_KERNELS_BUILD"
HOW_TO_SET = f"unset {VARIABLE}, or set it to wait or background"
CORE_SECONDS = 39.0
"""CPU time of all compilers together, g++ 12 on an AMD EPYC with AVX-512."""
_LONGEST_FILE_S = 9.0


def must_wait() -> bool:
    """Return whether this process waits for the compiler, as tests and measurements do, or if PREP_KERNELS names C++.

    Raises ValueError for another value of PREP_KERNELS_BUILD than `wait` and `background`, the default.
    """
    asked = os.environ.get(VARIABLE) or "background"
    if asked not in ("background", "wait"):
        raise ValueError(f"{VARIABLE}={asked!r} is not valid; {HOW_TO_SET}")
    forms = {item.rpartition("=")[2].strip() for item in os.environ.get("PREP_KERNELS", "").split(",")}
    return asked == "wait" or "cpu" in forms or sys.platform == "win32"


def announce(has_started: bool) -> None:
    """Print why this process is slower than the next one. has_started: the compiler was started by this process."""
    seconds = max(_LONGEST_FILE_S, CORE_SECONDS / num_processors())
    if has_started:
        _print(
            f"compiling the CPU kernels in the background (once; about {seconds:.0f} s on an idle machine)."
        )
    else:
        _print("the CPU kernels are still being compiled, as an earlier start began.")
    _print("this process uses torch, which is slower, until it exits; the next start uses the kernels.")


def announce_failure(reason: str) -> None:
    """Print why this process and the next ones are slow."""
    _print(f"no CPU kernels, computing with torch, which is slower: {reason}")


def _print(text: str) -> None:
    print(f"prep: {text}", file=sys.stderr, flush=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a library inside the block, after the process that compiles it has ended. Raises BuildError."""
    lock = _open(path)
    try:
        if not _take(lock):
            _print("waiting for the process that compiles the CPU kernels")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def start(target: Target) -> bool:
    """Compile `target` in a detached process that holds the lock; return False if another process compiles it.

    The child is in a session of its own, and not a child of this process any more: it survives Ctrl-C, the end of this
    process, and a parent that ends all children of this one. Raises BuildError if it cannot start.
    """
    lock = _open(target.lock)
    try:
        if not _take(lock):
            return False
        child = [sys.executable, "-m", "kernels.cpu.compile", json.dumps(asdict(target))]
        subprocess.run(
            ["/bin/sh", "-c", '"$@" &', "sh", *child],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=(lock,),
            check=True,
        )
        return True
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"the process that compiles the kernels does not start: {error}") from error
    finally:
        os.close(lock)


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise no_place(error) from error


def _take(lock: int) -> bool:
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: two processes may compile at once
        return True
    return True

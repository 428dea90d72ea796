"""A process with all its descendants, to measure what they use together."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import psutil


def family(process: psutil.Process) -> list[psutil.Process]:
    """Return a process and its descendants: itself alone if it has ended.

    psutil reads the parent of every process of the machine, which takes milliseconds; Linux also keeps a short list
    of children for each thread.
    """
    if not _lists_children():
        return [process, *_descendants(process)]
    processes, pids = [process], list(_children(process.pid))
    while pids:
        try:
            processes.append(psutil.Process(pid := pids.pop()))
        except psutil.Error:
            continue  # it has just ended
        pids += _children(pid)
    return processes


@cache
def _lists_children() -> bool:
    try:
        Path(f"/proc/self/task/{os.getpid()}/children").read_bytes()
    except OSError:  # not Linux, or a kernel built without it
        return False
    return True


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        children: list[psutil.Process] = process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return children


def _children(pid: int) -> Iterator[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return  # the process has just ended
    for thread in threads:
        try:
            yield from map(
                int, Path(f"/proc/{pid}/task/{thread}/children").read_text(encoding="ascii").split()
            )
        except OSError:
            continue  # the thread has just ended

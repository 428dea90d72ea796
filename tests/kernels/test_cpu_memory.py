"""Memory that a process keeps when it frees it, and gives back when asked."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import os, torch
from kernels.cpu.memory import keep_freed_memory, release_freed_memory

def resident_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

keep_freed_memory()
before = resident_mib()
pieces = [torch.ones(1 << 20) for _ in range(25)]
last = torch.ones(100)  # after them: the pieces are not the end of the heap
del pieces
kept = resident_mib() - before
release_freed_memory()
print(round(kept), round(resident_mib() - before))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps freed memory when told to")
def test_freed_memory_stays_until_it_is_released() -> None:
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    kept, left = map(int, result.stdout.split())
    assert kept >= 95 and left <= 10

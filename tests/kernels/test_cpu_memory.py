"""Memory that a process keeps when it frees it, and gives back when asked; memory in large pages."""

from __future__ import annotations

import mmap
import platform
import subprocess
import sys

import pytest
import torch

from kernels.cpu.memory import in_large_pages, lazy_zeros

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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int32])
@pytest.mark.parametrize("rows", [3, 2_000])
def test_a_matrix_in_large_pages_is_a_contiguous_copy(rows: int, dtype: torch.dtype) -> None:
    turned = torch.arange(rows * 1_001).view(1_001, rows).to(dtype).T
    found = in_large_pages(turned)
    assert torch.equal(found, turned) and found.is_contiguous() and found.dtype == dtype
    found[0] = 7
    assert not torch.equal(found, turned)


def test_a_system_without_large_pages_gives_zeros_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("mmap.MADV_HUGEPAGE", raising=False)
    large = torch.ones(3 << 20, dtype=torch.uint8)
    assert in_large_pages(large) is large
    for count in (0, 5, 3 << 20):
        assert torch.equal(lazy_zeros(count), torch.zeros(count, dtype=torch.uint8))


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="only Linux has pages of 2 MiB")
def test_large_pages_are_asked_for_and_need_not_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class WithoutLargePages(mmap.mmap):
        def madvise(self, option: int, *_: int) -> None:
            asked.append(option)
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(mmap, "mmap", WithoutLargePages)
    assert torch.equal(lazy_zeros(5), torch.zeros(5, dtype=torch.uint8))
    assert asked == [mmap.MADV_HUGEPAGE]


@pytest.mark.parametrize("count", [0, 5, 3 << 20])
def test_lazy_zeros_can_be_written(count: int) -> None:
    memory = lazy_zeros(count)
    assert torch.equal(memory, torch.zeros(count, dtype=torch.uint8))
    memory += 1
    assert memory.sum() == count

"""Memory for the results of C++ kernels: ordinary memory, or an arena while a graph is recorded.

A replayed call writes to the same addresses each time. So its results must not lie in memory that torch reuses in
between: while recording, they are cut one after the other from an arena that the owner of the graph keeps. Graphs
that are never replayed at the same time can share an arena.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import numpy as np
import torch
from torch import Tensor

_ALIGNMENT = 64  # bytes: a cache line


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_KEEP_BYTES, _LARGEST_KEPT = 128 << 20, 32 << 20  # the second is the most that glibc takes


def keep_freed_memory() -> None:
    """Let this process keep what it frees from now on, up to 128 MiB, instead of giving it back to the system.

    A step allocates and frees megabytes for every layer. By default glibc returns such pieces and gets them again, and
    each 4 KiB of them is a page fault: measured, a norm over 3,500 tokens takes 2 ms instead of 0.1. Other C libraries
    than glibc stay as they are.
    """
    if (mallopt := _libc("mallopt")) is not None:
        mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT)


def release_freed_memory() -> None:
    """Give what this process has freed and kept back to the system, once: for moments without work."""
    if (trim := _libc("malloc_trim")) is not None:
        trim(0)


def _libc(name: str) -> Callable[..., int] | None:
    """Return a function of the C library; None where there is no such function."""
    try:
        return getattr(ctypes.CDLL(None), name)  # type: ignore[no-any-return]
    except (OSError, AttributeError):
        return None


_LARGE_PAGE = 2 << 20  # bytes


def lazy_zeros(num_bytes: int) -> Tensor:
    """uint8 [num_bytes]: zeros that the system maps on first use, in pages of 2 MiB where it can.

    torch would write every page now, with a page fault for each 4 KiB: measured, four times as long.
    """
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.from_numpy(np.zeros(num_bytes, np.uint8))
    memory = mmap.mmap(-1, max(1, num_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a Linux that is built without large pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)[:num_bytes]


def in_large_pages(weight: Tensor) -> Tensor:
    """A contiguous tensor of the same numbers; one of 2 MiB or more is a copy in large pages where the system has them.

    A product of few rows reads the weights from memory, and takes fewer entries of the page table for that.
    """
    if weight.nbytes < _LARGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return weight.contiguous()
    return lazy_zeros(weight.nbytes).view(weight.dtype).view(weight.shape).copy_(weight)


class ArenaFull(MemoryError):
    """A recording needs more memory than its arena has."""


class Arena:
    """A piece of memory, allocated from its start to its end; `reset` frees all of it."""

    def __init__(self, num_bytes: int) -> None:
        self._memory = torch.empty(num_bytes + _ALIGNMENT, dtype=torch.uint8)
        self._begin = -self._memory.data_ptr() % _ALIGNMENT
        self._used = self._begin

    def reset(self) -> None:
        self._used = self._begin

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        num_bytes = torch.Size(shape).numel() * dtype.itemsize
        end = self._used + num_bytes
        if end > len(self._memory):
            raise ArenaFull(f"an arena of {len(self._memory)} bytes is too small")
        piece = self._memory[self._used : end].view(dtype).view(shape)
        self._used = end + -num_bytes % _ALIGNMENT
        return piece


_current = threading.local()


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A contiguous tensor without values."""
    arena: Arena | None = getattr(_current, "arena", None)
    return torch.empty(shape, dtype=dtype) if arena is None else arena.empty(shape, dtype)


@contextmanager
def allocating_from(arena: Arena) -> Iterator[None]:
    """Inside the block this thread's kernels take their memory from `arena`."""
    arena.reset()
    _current.arena = arena
    try:
        yield
    finally:
        _current.arena = None

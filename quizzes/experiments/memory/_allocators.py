"""Four allocators for sequences of unknown length.

Three need one contiguous run, as engines before PagedAttention did (the paper's baselines, section 6.1); the fourth is
the engine's block pool. Sizes are in token slots. Runs are found first-fit, lowest address first.
"""

from __future__ import annotations

from typing import Protocol

from engine.frontend.block_space_manager import AllocStatus, BlockSpaceManager


class Allocator(Protocol):
    """Slots for sequences; `grow` makes room for one more token of an admitted sequence."""

    def admit(self, name: str, prompt: int, final: int) -> bool: ...
    def grow(self, name: str) -> bool: ...
    def free(self, name: str) -> None: ...
    @property
    def taken(self) -> int: ...
    def fits_in_sum(self, prompt: int, final: int) -> bool:
        """Whether the free slots would suffice if they were contiguous."""
        ...


class Contiguous:
    """First fit in one address range. A run keeps its size: `size_of` the final length."""

    def __init__(self, slots: int, max_len: int | None = None) -> None:
        self.slots = slots
        self.max_len = max_len
        """Slots per sequence; None: its final length, which only an oracle knows."""
        self.runs: dict[str, tuple[int, int]] = {}

    def size_of(self, final: int) -> int:
        return final if self.max_len is None else self.max_len

    def admit(self, name: str, prompt: int, final: int) -> bool:
        size, start = self.size_of(final), 0
        for first, length in sorted(self.runs.values()):
            if first - start >= size:
                break
            start = first + length
        if self.slots - start < size:
            return False
        self.runs[name] = (start, size)
        return True

    def grow(self, name: str) -> bool:
        return True

    def free(self, name: str) -> None:
        del self.runs[name]

    @property
    def taken(self) -> int:
        return sum(length for _, length in self.runs.values())

    def fits_in_sum(self, prompt: int, final: int) -> bool:
        return self.size_of(final) <= self.slots - self.taken


class Buddy(Contiguous):
    """Powers of two, each at a multiple of its size, so that neighbours can be joined again."""

    def size_of(self, final: int) -> int:
        return 1 << (final - 1).bit_length()

    def admit(self, name: str, prompt: int, final: int) -> bool:
        size = self.size_of(final)
        holes = self._holes()
        fitting = [hole for hole in holes if hole[1] >= size]
        if not fitting:
            return False
        self.runs[name] = (min(fitting, key=lambda hole: (hole[1], hole[0]))[0], size)
        return True

    def _holes(self) -> list[tuple[int, int]]:
        """The free buddies: the largest aligned powers of two that no run touches."""
        return self._free_in(0, 1 << (self.slots.bit_length() - 1))

    def _free_in(self, start: int, size: int) -> list[tuple[int, int]]:
        touching = [run for run in self.runs.values() if run[0] < start + size and start < run[0] + run[1]]
        if not touching:
            return [(start, size)]
        if any(run[1] >= size for run in touching):
            return []
        half = size // 2
        return self._free_in(start, half) + self._free_in(start + half, half)

    @property
    def usable(self) -> int:
        return 1 << (self.slots.bit_length() - 1)

    def fits_in_sum(self, prompt: int, final: int) -> bool:
        return self.size_of(final) <= self.usable - self.taken


class Paged:
    """The engine's block manager: a sequence takes any free block when it needs one."""

    def __init__(self, slots: int, block_size: int) -> None:
        self.block_size = block_size
        self.manager = BlockSpaceManager(slots // block_size, 0, block_size)

    def admit(self, name: str, prompt: int, final: int) -> bool:
        if self.manager.can_allocate(prompt) is not AllocStatus.OK:
            return False
        self.manager.allocate(name, prompt)
        return True

    def grow(self, name: str) -> bool:
        full = self.manager.num_tokens(name) % self.block_size == 0
        if full and not len(self.manager.device.free):
            return False
        self.manager.append_slot(name)
        return True

    def free(self, name: str) -> None:
        self.manager.free(name)

    @property
    def taken(self) -> int:
        return self.manager.num_used_blocks * self.block_size

    def fits_in_sum(self, prompt: int, final: int) -> bool:
        return prompt <= len(self.manager.device.free) * self.block_size

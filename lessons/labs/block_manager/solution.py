"""Solution of lab block-manager. The docstrings of the stub state the contract."""

from __future__ import annotations

from collections import deque


class BlockManager:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._block_size = block_size
        self._free = deque(range(1, num_blocks))
        self._owners = [0] * num_blocks
        self._tables: dict[str, list[int]] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    def table(self, request: str) -> list[int]:
        return list(self._tables.get(request, ()))

    def allocate(self, request: str, num_tokens: int) -> list[int] | None:
        held = len(self._tables.get(request, ()))
        missing = max(0, -(-num_tokens // self._block_size) - held)
        if missing > len(self._free):
            return None
        taken = [self._take() for _ in range(missing)]
        self._tables.setdefault(request, []).extend(taken)
        return taken

    def fork(self, parent: str, child: str) -> None:
        table = self._tables[parent]
        if child in self._tables:
            raise ValueError(f"{child!r} has a table already")
        for block in table:
            self._owners[block] += 1
        self._tables[child] = list(table)

    def write(self, request: str, position: int) -> tuple[int, int] | None:
        table = self._tables[request]
        if not 0 <= position < len(table) * self._block_size:
            raise IndexError(f"position {position} of {request!r} has no slot")
        index = position // self._block_size
        old = table[index]
        if self._owners[old] == 1:
            return None
        if not self._free:
            raise MemoryError("no block is free for the copy")
        new = self._take()
        self._owners[old] -= 1
        table[index] = new
        return old, new

    def free(self, request: str) -> None:
        for block in self._tables.pop(request):
            self._owners[block] -= 1
            if self._owners[block] == 0:
                self._free.append(block)

    def _take(self) -> int:
        block = self._free.popleft()
        self._owners[block] = 1
        return block

"""Solution of lab swap-tier. The docstrings of the stub state the contract."""

from __future__ import annotations

from collections import Counter, OrderedDict


class HostTier:
    def __init__(self, num_blocks: int) -> None:
        self.empty = list(range(num_blocks, 0, -1))
        """Free blocks without content."""
        self.idle: OrderedDict[int, None] = OrderedDict()
        """Free blocks with content, in the order in which they became free."""
        self.content: dict[int, bytes] = {}
        self.block_of: dict[bytes, int] = {}
        """The inverse of content: what `match` finds."""
        self.pins: Counter[int] = Counter()
        self.stored: dict[int, list[tuple[int, bytes]]] = {}
        """Unfinished step -> the blocks that it writes, with their future content."""
        self.loaded: dict[int, list[int]] = {}
        """Unfinished step -> the blocks that it reads."""
        self.writing: set[bytes] = set()

    @property
    def num_free(self) -> int:
        return len(self.empty) + len(self.idle)

    def match(self, hashes: list[bytes], device: set[bytes]) -> tuple[int, list[int]]:
        start = 0
        while start < len(hashes) and hashes[start] in device:
            start += 1
        found: list[int] = []
        for each in hashes[start:]:
            if (block := self.block_of.get(each)) is None:
                break
            found.append(block)
        return start, found

    def store(self, step: int, block_hash: bytes) -> int | None:
        if block_hash in self.block_of or block_hash in self.writing or not self.num_free:
            return None
        if self.empty:
            block = self.empty.pop()
        else:
            block, _ = self.idle.popitem(last=False)
            del self.block_of[self.content.pop(block)]
        self.pins[block] += 1
        self.writing.add(block_hash)
        self.stored.setdefault(step, []).append((block, block_hash))
        return block

    def load(self, step: int, blocks: list[int]) -> None:
        if any(block not in self.content for block in blocks):
            raise ValueError(f"a block of {blocks} has no content")
        for block in blocks:
            self.idle.pop(block, None)
            self.pins[block] += 1
        self.loaded.setdefault(step, []).extend(blocks)

    def finish(self, step: int) -> None:
        for each in sorted(number for number in {*self.stored, *self.loaded} if number <= step):
            stored = self.stored.pop(each, [])
            for block, block_hash in stored:
                self.writing.discard(block_hash)
                if each == step:
                    self.content[block], self.block_of[block_hash] = block_hash, block
            for block in [*(block for block, _ in stored), *reversed(self.loaded.pop(each, []))]:
                self._unpin(block)

    def _unpin(self, block: int) -> None:
        self.pins[block] -= 1
        if self.pins[block]:
            return
        if block in self.content:
            self.idle[block] = None
        else:
            self.empty.append(block)

"""Solution of lab lora-batching. The docstrings of the stub state the contract."""

from __future__ import annotations

from collections import Counter, OrderedDict


class AdapterSlots:
    def __init__(self, max_loras: int) -> None:
        if max_loras < 1:
            raise ValueError(f"max_loras must be at least 1, got {max_loras}")
        self.slot_of: dict[str, int] = {}
        """Slots by adapter."""
        self.users = [0] * max_loras
        self.idle: OrderedDict[int, None] = OrderedDict.fromkeys(range(max_loras))
        """Slots without users in the order of reuse: empty ones, then the longest idle."""
        self.running: dict[str, int] = {}
        """Slots by running request; -1 for the base model."""
        self.closed = -1
        self.closed_for = ""

    def step(
        self, ended: list[str], waiting: list[tuple[str, str]], seats: int
    ) -> tuple[list[tuple[str, int]], int]:
        for request_id in ended:
            self._leave(self.running.pop(request_id))
        if self.closed >= 0 and all(request_id != self.closed_for for request_id, _ in waiting):
            self.closed = -1
        started: list[tuple[str, int]] = []
        for request_id, adapter in waiting:
            if len(started) == seats:
                break
            slot = self._slot_for(adapter)
            if slot is not None:
                self.running[request_id] = slot
                started.append((request_id, slot))
                if request_id == self.closed_for:
                    self.closed = -1
            elif self.closed < 0:
                self.closed, self.closed_for = self._choose(waiting), request_id
        return started, self.closed

    def _leave(self, slot: int) -> None:
        """Remove a user of a slot."""
        if slot >= 0:
            self.users[slot] -= 1
            if not self.users[slot]:
                self.idle[slot] = None

    def _slot_for(self, adapter: str) -> int | None:
        """Add a user to the adapter's slot, which it may have to take first. None if the request cannot start."""
        if not adapter:
            return -1
        slot = self.slot_of.get(adapter)
        if slot is None:
            if not self.idle:
                return None
            slot = next(iter(self.idle))
            self.slot_of = {name: at for name, at in self.slot_of.items() if at != slot}
            self.slot_of[adapter] = slot
        elif slot == self.closed:
            return None
        self.users[slot] += 1
        self.idle.pop(slot, None)
        return slot

    def _choose(self, waiting: list[tuple[str, str]]) -> int:
        """Return the slot to close: the fewest waiting requests want it; of these, the one with the fewest users."""
        wanted = Counter(adapter for _, adapter in waiting)
        return min(
            self.slot_of.values(), key=lambda slot: (wanted[self._adapter_in(slot)], self.users[slot], slot)
        )

    def _adapter_in(self, slot: int) -> str:
        return next(adapter for adapter, at in self.slot_of.items() if at == slot)

"""Lab lora-batching: choose the requests that start, when few adapters fit into memory.

The seam is the admission by adapter (engine/core/lora_slots.py). The GPU has room for the weights of `max_loras`
adapters, one in each slot, and every running request of an adapter uses its slot. An adapter in use is not replaced.
vLLM 0.32 passes over a waiting request whose adapter has no place and goes on with the next one. Then a popular adapter
may keep its slot for ever, and a request of a rare adapter never starts. Your class bounds the wait: one slot closes
for new users, falls idle, and goes to the first request that was passed over.

    slot 0: a, used by r1, r4     waiting (in order): r7 of c, r8 of a, r9 of b, r10 of a
    slot 1: b, used by r2         r7 has no slot: slot 1 closes. r8 starts, r9 waits (b is closed), r10 starts.
                                  When r2 has ended, slot 1 is idle: c takes it, and r7 starts.

Sources: S-LoRA (Sheng et al. 2023), section 5; vLLM v1/core/sched/scheduler.py, `scheduled_loras`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict


class AdapterSlots:
    """The adapter slots of a GPU, numbered from 0, and the requests that use them."""

    def __init__(self, max_loras: int) -> None:
        """max_loras: number of slots, all empty. Raises ValueError if it is less than 1."""
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
        """Choose the requests that start now. Called once before every step of the engine.

        ended: ids of running requests that have ended since the last call, in the order of their ends.
        waiting: (request id, adapter) in order of arrival; the adapter "" is the base model. It holds what the last
        call did not start, without requests whose clients have left, then new ones. seats: most requests that may
        start, 0 or more.
        Returns (request id, slot) of those that start, in the order of `waiting`, slot -1 for the base model; and the
        slot that is closed when this call ends, or -1.

        First the ended requests leave. A slot without users is idle. Its adapter stays in it, ready for more requests.
        Then each waiting request in order, until `seats` requests have started:
        - The base model needs no slot: the request starts.
        - Its adapter is in a slot that is not closed: the request starts there.
        - Its adapter is in no slot, and a slot is empty or idle: the request starts in the empty slot of the lowest
          number; without one, its adapter replaces the one in the slot that has been idle for the longest.
        - Otherwise the request is passed over. If no slot is closed, one closes now, for this request: a closed slot
          takes no further request of its adapter. Which slot it is, you choose; the race measures it.
        A closed slot is open again as soon as the request for which it closed starts, in whichever slot, or is no
        longer in `waiting`. So at most one slot is closed.
        """
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

"""Which adapter lies in which slot of the device, and who must wait for one.

A worker has room for the weights of `max_loras` adapters. The scheduler decides what lies there, so that every worker
holds the same, a trace can be replayed, and a simulation needs no weights:

    slot          0                1                2
    adapter       ja               support          recommend
    used by       r1, r4           r2               nobody: the next one to be replaced

A request whose adapter lies in a slot may start. If it does not, the slot that has been idle for the longest gets it;
if no slot is idle, the request waits (`Reason.NO_LORA_SLOT`) and those behind it may go on, with one exception. The
slot with the fewest users (the first among equals) closes for them. Its users finish and none is added, so it falls
idle and goes to the one who has waited the longest: nobody starves, and adapters with much traffic keep theirs.

Source: S-LoRA (Sheng et al. 2023), section 5; vLLM v1/core/sched/scheduler.py (`max_loras` among running requests) and
lora/worker_manager.py (LRU).
"""

from __future__ import annotations

from collections import Counter, OrderedDict


class LoRASlots:
    """The slots of every worker. An adapter is named by its key: name, path and load counter."""

    def __init__(self, max_loras: int) -> None:
        self.max_loras = max_loras
        self.slot_of: dict[str, int] = {}
        """Adapters on the device."""
        self.num_users: Counter[str] = Counter()
        """Running requests by adapter, without zeros."""
        self._idle: OrderedDict[str, None] = OrderedDict()
        """Adapters on the device that nobody uses, longest idle first."""
        self._free = list(range(max_loras - 1, -1, -1))
        self._closed: str | None = None
        self.loads: list[tuple[str, int]] = []
        """What this step brings to the device: (adapter, slot). Of a step that is not confirmed nobody knows how far
        it came, so whatever it was to bring is brought again."""
        self.num_evictions = 0
        """Adapters that lost their slot in this step."""

    def begin_step(self) -> None:
        for key, _ in self.loads:
            self.forget(key)
        self._closed = None
        self.loads = []
        self.num_evictions = 0

    def confirm_step(self) -> None:
        """The step was computed: its adapters are there."""
        self.loads = []

    def has_room(self, key: str) -> bool:
        """Whether a request with this adapter may start now. If not, one slot closes for all who are asked later
        in this step, and that is those behind it in the queue."""
        if key in self.slot_of:
            return key != self._closed
        if self._free or self._idle:
            return True
        if self._closed is None:
            self._closed = min(self.slot_of, key=lambda other: (self.num_users[other], self.slot_of[other]))
        return False

    def acquire(self, key: str) -> None:
        """A request with this adapter starts: bring it to the device unless it is there."""
        if key not in self.slot_of:
            if self._free:
                slot = self._free.pop()
            else:
                evicted, _ = self._idle.popitem(last=False)
                slot = self.slot_of.pop(evicted)
                self.num_evictions += 1
            self.slot_of[key] = slot
            self.loads.append((key, slot))
        self._idle.pop(key, None)
        self.num_users[key] += 1

    def release(self, key: str) -> None:
        """A request with this adapter stops running."""
        self.num_users[key] -= 1
        if not self.num_users[key]:
            del self.num_users[key]
            self._idle[key] = None

    def forget(self, key: str) -> None:
        """Free the slot of an adapter that was unloaded. Nobody may be using it."""
        if key in self._idle:
            del self._idle[key]
            self._free.append(self.slot_of.pop(key))

    def problems(self, running: Counter[str]) -> list[str]:
        """What is wrong, given the running requests by adapter. For integrity checks."""
        found = []
        if running != self.num_users:
            found.append(f"running requests by adapter are {dict(running)}, counted {dict(self.num_users)}")
        if not set(running) <= set(self.slot_of):
            found.append("a running request's adapter has no slot")
        slots = [*self.slot_of.values(), *self._free]
        if sorted(slots) != list(range(self.max_loras)):
            found.append(f"the slots are {sorted(slots)}, there are {self.max_loras}")
        if set(self._idle) != set(self.slot_of) - set(running):
            found.append("the idle adapters are not those on the device that nobody uses")
        return found

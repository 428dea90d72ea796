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


class AdapterSlots:
    """The adapter slots of a GPU, numbered from 0, and the requests that use them."""

    def __init__(self, max_loras: int) -> None:
        """max_loras: number of slots, all empty. Raises ValueError if it is less than 1."""
        raise NotImplementedError("write AdapterSlots")

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
        raise NotImplementedError("write step")

"""Uses of the scheduler with waiting requests."""

import heapq
from types import ModuleType
from typing import Any


def batch_size(given: ModuleType, *, waiting: int = 10, max_batch_size: int = 4) -> int:
    """Sequences in the first batch."""
    scheduler = given.SimpleScheduler(max_batch_size)
    for i in range(waiting):
        scheduler.add_sequence(given.Sequence(f"r{i}", ""))
    return len(scheduler.schedule())


def first_of(given: ModuleType, *, priorities: tuple[int, ...] = (5, 1, 3)) -> int:
    """The priority of the sequence that a scheduler with one slot picks first: its queue's head."""
    queue: list[Any] = []
    for i, priority in enumerate(priorities):
        heapq.heappush(queue, given.Sequence(f"r{i}", "", priority))
    return int(queue[0].priority)


def one_slot_urgent_ones_come(given: ModuleType, *, steps: int = 50) -> int:
    """An unimportant sequence waits in a queue that hands out one a step; each step brings an important one.

    Returns the step that serves it; -1: never within these steps.
    """
    queue: list[Any] = [given.Sequence("patient", "", 0)]
    for step in range(steps):
        heapq.heappush(queue, given.Sequence(f"urgent{step}", "", 1))
        if heapq.heappop(queue).request_id == "patient":
            return step
    return -1


def same_id_twice(given: ModuleType, *, copies: int = 2) -> int:
    """Sequences that still run after several with one id were added."""
    scheduler = given.SimpleScheduler(8)
    for _ in range(copies):
        scheduler.add_sequence(given.Sequence("same", ""))
    return len(scheduler.schedule())


def tokens_admitted(
    given: ModuleType, *, prompts: int = 4, prompt_tokens: int = 1000, kv_tokens: int = 1600
) -> int:
    """KV tokens that the admitted prompts need, on a device with room for kv_tokens."""
    scheduler = given.SimpleScheduler(max_batch_size=prompts)
    for i in range(prompts):
        scheduler.add_sequence(given.Sequence(f"r{i}", "x " * prompt_tokens))
    return sum(len(sequence.prompt.split()) for sequence in scheduler.schedule())


def ways_to_abort(given: ModuleType) -> int:
    """Methods by which a client that hung up can be taken out."""
    return sum(
        name in dir(given.SimpleScheduler)
        for name in ("abort", "abort_sequence", "cancel", "remove_sequence")
    )

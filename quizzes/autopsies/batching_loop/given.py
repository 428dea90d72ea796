"""Continuous batching as a loop. `steps` stands in for "for ever"."""

from typing import Any


def continuous_batching(model: Any, waiting: list[Any], memory: Any, slots: int, steps: int) -> None:
    batch = [waiting.pop(0) for _ in range(min(slots, len(waiting)))]
    for _ in range(steps):
        outputs = model.forward(batch)
        completed = [request for request in batch if outputs[request.name] is None]
        memory.release(completed)
        arrived = [waiting.pop(0) for _ in range(len(waiting))]
        batch = batch + arrived

"""Continuous batching: between two steps the finished leave and the next in line take their slots."""

from typing import Any


def continuous_batching(model: Any, waiting: list[Any], memory: Any, slots: int) -> None:
    batch: list[Any] = []
    while waiting or batch:
        while waiting and len(batch) < slots:
            batch.append(waiting.pop(0))
        outputs = model.forward(batch)
        completed = [request for request in batch if outputs[request.name] is None]
        memory.release(completed)
        batch = [request for request in batch if outputs[request.name] is not None]

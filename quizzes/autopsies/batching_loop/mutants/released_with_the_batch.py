"""Caught by check_memory_is_released_once: gives back the memory of the whole batch when one finishes."""

from __future__ import annotations

from typing import Any


def continuous_batching(model: Any, waiting: list[Any], memory: Any, slots: int) -> None:
    batch: list[Any] = []
    while waiting or batch:
        while waiting and len(batch) < slots:
            batch.append(waiting.pop(0))
        outputs = model.forward(batch)
        completed = [request for request in batch if outputs[request.name] is None]
        memory.release(batch if completed else [])
        batch = [request for request in batch if outputs[request.name] is not None]

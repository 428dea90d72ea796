"""Caught by check_random_work_takes_as_long_as_list_scheduling: only one request joins between two steps."""

from __future__ import annotations

from typing import Any


def continuous_batching(model: Any, waiting: list[Any], memory: Any, slots: int) -> None:
    batch: list[Any] = []
    while waiting or batch:
        if waiting and len(batch) < slots:
            batch.append(waiting.pop(0))
        outputs = model.forward(batch)
        completed = [request for request in batch if outputs[request.name] is None]
        memory.release(completed)
        batch = [request for request in batch if outputs[request.name] is not None]

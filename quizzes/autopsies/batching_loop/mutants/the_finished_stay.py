"""Caught by check_nothing_is_computed_for_the_finished: the finished leave only when all have finished."""

from __future__ import annotations

from typing import Any


def continuous_batching(model: Any, waiting: list[Any], memory: Any, slots: int) -> None:
    batch: list[Any] = []
    while waiting or batch:
        while waiting and len(batch) < slots:
            batch.append(waiting.pop(0))
        outputs = model.forward(batch)
        completed = [request for request in batch if outputs[request.name] is None]
        memory.release(completed)
        if len(completed) == len(batch):
            batch = []

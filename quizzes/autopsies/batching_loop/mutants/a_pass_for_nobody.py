"""Caught by check_nothing_to_do_is_no_work: looks whether there is work only after a step."""

from __future__ import annotations

from typing import Any


def continuous_batching(model: Any, waiting: list[Any], memory: Any, slots: int) -> None:
    batch: list[Any] = []
    first = True
    while first or waiting or batch:
        first = False
        while waiting and len(batch) < slots:
            batch.append(waiting.pop(0))
        outputs = model.forward(batch)
        completed = [request for request in batch if outputs[request.name] is None]
        memory.release(completed)
        batch = [request for request in batch if outputs[request.name] is not None]

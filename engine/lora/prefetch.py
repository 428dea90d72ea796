"""Read adapters in a thread while steps run, in the order in which the scheduler asks.

    start(key, slot)  --thread-->  read, then copy into the slot     take(key)  --engine-->  wait and use the result

A slot that is being filled belongs to no row of a running step, so the thread writes what no kernel reads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import torch

from engine.lora.adapter import Adapter

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fetch:
    """An adapter that was fetched ahead. adapter: None if that did not begin or failed. slot: -1 for host memory."""

    adapter: Adapter | None
    slot: int


class Prefetcher:
    """One thread that reads adapters ahead. Call all methods from the thread that runs the steps."""

    def __init__(self, read: Callable[[str], Adapter], fill: Callable[[int, Adapter], None]) -> None:
        self._read, self._fill = read, fill
        self._under_way: dict[str, tuple[Future[Adapter], int]] = {}
        """Future and slot by key."""
        self._thread: ThreadPoolExecutor | None = None

    def start(self, key: str, slot: int) -> None:
        """Begin to fetch an adapter; one that is under way already is read once."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="lora-prefetch")
        before = self._under_way[key][0] if key in self._under_way else None
        self._under_way[key] = self._thread.submit(self._fetch, key, slot, before), slot

    def take(self, key: str) -> Fetch | None:
        """Return what was fetched, and wait for it if it has begun; None if nothing was started for this adapter."""
        if key not in self._under_way:
            return None
        future, slot = self._under_way.pop(key)
        if future.cancel():
            return Fetch(None, slot)
        try:
            return Fetch(future.result(), slot)
        except Exception as error:  # the step that needs the adapter reads it again and reports what is wrong
            logger.warning("adapter %s was not fetched ahead: %s", key, error)
            return Fetch(None, slot)

    def cancel(self, key: str) -> None:
        """Drop an adapter under way; returns when the thread writes to no slot for it."""
        if key not in self._under_way:
            return
        future, slot = self._under_way.pop(key)
        if not future.cancel() and slot >= 0:
            wait([future])

    def filling(self, slot: int) -> list[str]:
        """Return the adapters under way into a slot."""
        return [key for key, (_, its) in self._under_way.items() if its == slot]

    def is_filling(self, key: str) -> bool:
        """Whether an adapter is under way into a slot."""
        return key in self._under_way and self._under_way[key][1] >= 0

    def shutdown(self) -> None:
        """Drop what is under way and end the thread."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
        self._thread = None
        self._under_way.clear()

    @torch.inference_mode()
    def _fetch(self, key: str, slot: int, before: Future[Adapter] | None) -> Adapter:
        is_read = before is not None and not before.cancelled() and before.exception() is None
        adapter = before.result() if before is not None and is_read else self._read(key)
        if slot >= 0:
            self._fill(slot, adapter)
        return adapter

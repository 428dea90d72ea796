"""Adapters in host memory, and which adapters of waiting requests are fetched ahead (`lora_prefetch`).

    folder  --read-->  host memory (max_cpu_loras, LRU)  --copy-->  slot (engine/core/lora_slots.py)

A step that starts a request whose adapter is not in host memory reads the adapter's folder, and every row of the batch
waits for it. With `lora_prefetch`, workers read the adapters of the next waiting requests while earlier steps run. The
scheduler keeps the account of host memory and sends what to drop, so that every worker holds the same. vLLM has no such
setting: its workers read an adapter in the step that first uses it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from heapq import heappop, heappush

from engine.core.queues import SortKey
from engine.core.request import Request


class HostAdapters:
    """Account of the adapters in host memory, least recently used first."""

    def __init__(self, max_cpu_loras: int) -> None:
        self.max_cpu_loras = max_cpu_loras
        self.keys: OrderedDict[str, None] = OrderedDict()
        self.known: set[str] = set()
        """Adapters that were loaded and not unloaded; workers can read them again."""
        self.drops: list[str] = []
        """Adapters that workers have yet to drop."""

    def __contains__(self, key: str) -> bool:
        return key in self.keys

    def put(self, key: str, keep: Collection[str] = ()) -> None:
        """Count an adapter as just used. Beyond `max_cpu_loras`, drop the least recently used ones, `keep` last."""
        self.known.add(key)
        self.keys[key] = None
        self.keys.move_to_end(key)
        if key in self.drops:
            self.drops.remove(key)
        while len(self.keys) > self.max_cpu_loras:
            idle = (other for other in self.keys if other != key and other not in keep)
            dropped = next(idle, None) or next(iter(self.keys))
            del self.keys[dropped]
            self.drops.append(dropped)

    def remove(self, key: str) -> None:
        """Forget an adapter that workers have dropped by themselves."""
        self.keys.pop(key, None)

    def take_drops(self) -> list[str]:
        """Return what workers have to drop; they drop it now."""
        drops, self.drops = self.drops, []
        return drops


class WaitingAdapters:
    """Adapters of the waiting requests, in queue order.

    One heap of (sort key, request id) per adapter, with lazy deletion: the most important request of an adapter is
    found without a look at the others.
    """

    def __init__(self) -> None:
        self._heaps: dict[str, list[tuple[SortKey, str]]] = {}
        self._live: dict[str, set[str]] = {}

    def push(self, request: Request) -> None:
        key = request.lora_key or ""
        heappush(self._heaps.setdefault(key, []), (request.sort_key, request.request_id))
        self._live.setdefault(key, set()).add(request.request_id)

    def remove(self, request: Request) -> None:
        """Remove a request; one that is not here is ignored."""
        key = request.lora_key or ""
        live = self._live.get(key)
        if live is None:
            return
        live.discard(request.request_id)
        if not live:
            del self._live[key], self._heaps[key]

    def in_order(self) -> list[str]:
        """Return the adapters, that of the most important request first."""
        return sorted(self._live, key=self._first)

    def _first(self, key: str) -> SortKey:
        heap, live = self._heaps[key], self._live[key]
        while heap[0][1] not in live:
            heappop(heap)
        return heap[0][0]

"""Adapter slots of the device: which adapter lies in which, and which requests wait.

A worker has room for the weights of `max_loras` adapters. The scheduler decides what lies there, so that every worker
holds the same and a trace can be replayed:

    slot          0                1                2
    adapter       ja               support          recommend
    used by       r1, r4           r2               none: the next one to be replaced

A request whose adapter lies in a slot may start. Otherwise its adapter replaces the one that has been idle for the
longest. If no slot is idle, the request waits (`Reason.NO_LORA_SLOT`) and requests behind it may go on, with one
exception: the slot with the fewest users closes for them. It falls idle and goes to the request that has waited the
longest, so no request starves, and adapters with much traffic keep their slots.

The first `lora_prefetch` adapters that waiting requests lack are fetched ahead: into host memory, and into a slot that
holds none. No decision waits for that, so requests start in the same steps with and without it.

Source: S-LoRA (Sheng et al. 2023), section 5; vLLM v1/core/sched/scheduler.py (`max_loras` among running requests) and
lora/worker_manager.py (LRU).
"""

from __future__ import annotations

from collections import Counter, OrderedDict

from engine.core.admission_resource import AdmissionResource
from engine.core.lora_host import HostAdapters, WaitingAdapters
from engine.core.request import Request
from engine.core.sched_output import ModelRunnerOutput, NotScheduled, Reason, SchedulerOutput
from engine.core.stats import StepStats
from prep_common.text import counted


class LoRASlots(AdmissionResource):
    """The slots of every worker. An adapter is named by its key: name, path and load counter."""

    def __init__(self, max_loras: int, max_cpu_loras: int = 0, prefetch: int = 0) -> None:
        """max_cpu_loras: 0 for as many as `max_loras`. prefetch: adapters to fetch ahead, at most max_cpu_loras."""
        self.max_loras = max_loras
        self.host = HostAdapters(max_cpu_loras or max_loras)
        self.prefetch = min(prefetch, self.host.max_cpu_loras)
        self._waiting = WaitingAdapters()
        """Filled only if adapters are fetched ahead."""
        self._wanted: list[str] = []
        """Adapters that the next waiting requests lack: they stay in host memory."""
        self.slot_of: dict[str, int] = {}
        """Adapters on the device."""
        self.num_users: Counter[str] = Counter()
        """Running requests by adapter, without zeros."""
        self._idle: OrderedDict[str, None] = OrderedDict()
        """Adapters on the device without users, longest idle first."""
        self._free = list(range(max_loras - 1, -1, -1))
        self._closed: str | None = None
        self.loads: list[tuple[str, int]] = []
        """(adapter, slot) to bring to the device in this step. If the step fails, they are brought again."""
        self.prefetches: list[tuple[str, int]] = []
        """(adapter, slot) to fetch while the next steps run; slot -1: into host memory only."""
        self.num_evictions = 0
        """Adapters that lost their slot in this step."""

    def add(self, request: Request) -> None:
        if not (key := request.lora_key):
            return
        if key not in self.host.known:  # a replayed run has no calls that load adapters
            self.host.put(key, self._wanted)
        if self.prefetch:
            self._waiting.push(request)

    def finish(self, request: Request) -> None:
        self._waiting.remove(request)

    def begin_step(self) -> None:
        for key, _ in (*self.loads, *self.prefetches):  # the last step failed
            self.unload(key)
        self._closed = None
        self.loads = []
        self.prefetches = []
        self.num_evictions = 0

    def why_not(self, request: Request, stats: StepStats) -> NotScheduled | None:
        if not request.lora_key or self.has_room(request.lora_key):
            return None
        stats.num_lora_waits += 1
        details = {"slots": self.max_loras, "running": self.num_users.total()}
        return NotScheduled(request.request_id, Reason.NO_LORA_SLOT, details)

    def has_room(self, key: str) -> bool:
        """Whether a request with this adapter may start now. If not, one slot closes for requests behind it."""
        if key in self.slot_of:
            return key != self._closed
        if self._free or self._idle:
            return True
        if self._closed is None:
            self._closed = min(self.slot_of, key=lambda other: (self.num_users[other], self.slot_of[other]))
        return False

    def acquire(self, request: Request) -> None:
        """Count a user of the request's adapter, and bring the adapter to the device unless it is there."""
        if not (key := request.lora_key):
            return
        if key not in self.slot_of:
            if self._free:
                slot = self._free.pop()
            else:
                evicted, _ = self._idle.popitem(last=False)
                slot = self.slot_of.pop(evicted)
                self.num_evictions += 1
            self.slot_of[key] = slot
            self.loads.append((key, slot))
        self._idle.pop(key, None)
        self.num_users[key] += 1
        self._waiting.remove(request)

    def release(self, request: Request) -> None:
        if not (key := request.lora_key):
            return
        self.num_users[key] -= 1
        if not self.num_users[key]:
            del self.num_users[key]
            self._idle[key] = None
        if self.prefetch:  # a preempted request waits again; `finish` removes one that has ended
            self._waiting.push(request)

    def load(self, key: str) -> list[str]:
        """Count an adapter that every worker has read into host memory; return the adapters that they drop for it."""
        self.host.put(key, self._wanted)
        return self.host.take_drops()

    def forget(self, key: str) -> None:
        """Unload an adapter that no request uses, from slot and host memory."""
        self.unload(key)
        self.host.remove(key)
        self.host.known.discard(key)
        self.prefetches = [entry for entry in self.prefetches if entry[0] != key]

    def unload(self, key: str) -> None:
        """Free the slot of an adapter, unless running requests use it."""
        if key in self._idle:
            del self._idle[key]
            self._free.append(self.slot_of.pop(key))

    def close_step(self, out: SchedulerOutput, stats: StepStats) -> None:
        lacking = (
            [key for key in self._waiting.in_order() if key not in self.slot_of] if self.prefetch else []
        )
        self._wanted = lacking[: self.prefetch]
        stats.num_lora_reads = sum(key not in self.host for key, _ in self.loads)
        for key, _ in self.loads:
            self.host.put(key, self._wanted)
        self._fetch_ahead()
        out.lora_loads = self.loads
        out.lora_prefetches = self.prefetches
        out.lora_drops = list(self.host.drops)
        stats.num_lora_loads = len(self.loads) + sum(slot >= 0 for _, slot in self.prefetches)
        stats.num_lora_evictions = self.num_evictions
        stats.num_lora_prefetches = len(self.prefetches)

    def _fetch_ahead(self) -> None:
        """Bring the first adapters that waiting requests lack closer to the device."""
        for key in self._wanted:
            if self._free:
                slot = self.slot_of[key] = self._free.pop()
                self._idle[key] = None
            elif key in self.host:
                continue
            else:
                slot = -1
            self.host.put(key, self._wanted)
            self.prefetches.append((key, slot))

    def end_step(self, result: ModelRunnerOutput, stats: StepStats) -> tuple[()]:
        self.loads, self.prefetches = [], []
        self.host.take_drops()
        return ()

    def check_integrity(self, running: list[Request], waiting: list[Request]) -> list[str]:
        users = Counter(request.lora_key for request in running if request.lora_key)
        problems = []
        if users != self.num_users:
            problems.append(f"running requests by adapter are {dict(users)}, counted {dict(self.num_users)}")
        if not set(users) <= set(self.slot_of):
            problems.append("a running request's adapter has no slot")
        if (slots := sorted([*self.slot_of.values(), *self._free])) != list(range(self.max_loras)):
            problems.append(f"the slots are {slots}, there are {self.max_loras}")
        if set(self._idle) != set(self.slot_of) - set(users):
            problems.append("the idle adapters are not those on the device without users")
        if len(self.host.keys) > self.host.max_cpu_loras:
            problems.append(
                f"{counted(len(self.host.keys), 'adapter')} in host memory, max_cpu_loras={self.host.max_cpu_loras}"
            )
        lora = {request.lora_key for request in waiting if request.lora_key}
        if self.prefetch and set(self._waiting.in_order()) != lora:
            problems.append("the adapters to fetch ahead are not those of the waiting requests")
        return problems

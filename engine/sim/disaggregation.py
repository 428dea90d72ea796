"""Prefill and decode on separate replicas, with the KV sent from one to the other.

    prefill replica     [ prompt ] first token
                                 | KV of the prompt: bytes / link, one transfer at a time per sender
    decode replica               +------------------> [ second token, third, ... ]

The decode replica receives the KV as the real engine does (engine/core/kv_manager.py): the blocks are in its prefix
cache when the request arrives, so admission finds a hit and computes the rest of the last block. If they do not
fit, or are evicted before the request starts, those tokens are computed again: slower, never wrong.

Source: DistServe (Zhong et al. 2024, arXiv 2401.09670); Splitwise (Patel et al. 2024, arXiv 2311.18677). Simplified:
the sender frees its blocks when the prompt is done, not when the transfer is.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from engine.config import ConfigError
from engine.core.kv_manager import KVManager
from engine.core.request import Request
from engine.sim.engine import SimEngine
from engine.sim.hardware import Link
from engine.sim.recorder import RequestRecord
from engine.sim.report import RunReport, summarise
from engine.sim.router import Replica, ReplicaReport, Router
from engine.sim.workload import SimRequest, Tell, make_request

LINK_SHARE = 0.8  # share of a link's rate that a large transfer reaches


@dataclass
class DisaggregatedReport:
    run: RunReport
    prefill: list[ReplicaReport]
    decode: list[ReplicaReport]
    transfers: int
    transfer_bytes: float  # bytes of all transfers on all devices
    mean_transfer_seconds: float  # from the first token until the KV has arrived, with the wait for the link


@dataclass(order=True)
class Transfer:
    arrives: float
    index: int
    record: RequestRecord = field(compare=False)
    first_token: list[int] = field(compare=False)


class DisaggregatedFleet:
    """A prefill pool, a decode pool and a link between them."""

    def __init__(
        self,
        make_prefill: Callable[[], SimEngine],
        make_decode: Callable[[], SimEngine],
        num_prefill: int,
        num_decode: int,
        prefill_router: Router,
        decode_router: Router,
        link: Link,
    ) -> None:
        if num_prefill < 1 or num_decode < 1:
            given = f"{num_prefill} for prefill and {num_decode} for decode"
            raise ConfigError(f"both pools need a replica, got {given}")
        self.prefill = [Replica(index, make_prefill()) for index in range(num_prefill)]
        self.decode = [Replica(index, make_decode()) for index in range(num_decode)]
        if not self.decode[0].engine.scheduler.kv.enable_prefix_caching:
            raise ConfigError(
                "the decode pool finds transferred KV in its prefix cache: leave prefix caching on"
            )
        self.routers = (prefill_router, decode_router)
        self.link = link
        self._free_at = [0.0] * num_prefill
        self._on_the_way: list[Transfer] = []
        self._finished: list[RequestRecord] = []
        self._seconds = 0.0
        self._bytes = 0.0
        self._count = 0

    def run(self, requests: Iterable[SimRequest], tell: Tell | None = None) -> DisaggregatedReport:
        for number, request in enumerate(requests):
            self._advance(request.arrival)
            self._to_prefill(request)
            if tell is not None and number % 256 == 0:
                tell(number)
        self._advance(float("inf"))
        for replica in self.decode:
            self._finished += replica.engine.run_until(float("inf"))
        return self._report()

    def _to_prefill(self, request: SimRequest) -> None:
        now = request.arrival
        core = make_request(request, output_len=1)
        replica = self.routers[0].choose(request, core, self.prefill)  # all have arrived at `now`
        replica.submit(core, RequestRecord(request, arrival=now, replica=replica.index), now)

    def _advance(self, when: float) -> None:
        """Advance prefill to `when` and deliver the KV sent by then."""
        for replica in self.prefill:
            for record in replica.engine.run_until(when):
                self._send(replica, record)
        while self._on_the_way and self._on_the_way[0].arrives <= when:
            self._receive(heapq.heappop(self._on_the_way))

    def _send(self, replica: Replica, record: RequestRecord) -> None:
        """Send the KV of a finished prompt, unless its first token was the only one."""
        if record.request.output_len == 1:
            self._finished.append(record)
            return
        deployment = replica.engine.cost.deployment
        per_device = record.request.prompt_len * deployment.kv_bytes_per_token_per_device
        start = max(record.last_token, self._free_at[replica.index])
        self._free_at[replica.index] = start + per_device / (self.link.bytes_per_s * LINK_SHARE)
        arrives = self._free_at[replica.index] + self.link.latency_s
        self._seconds += arrives - record.last_token
        self._bytes += per_device * deployment.num_devices
        self._count += 1
        request = record.request
        heapq.heappush(self._on_the_way, Transfer(arrives, request.index, record, [request.answer_token]))

    def _receive(self, transfer: Transfer) -> None:
        """Put the KV into the decode replica's cache and queue the rest of the request there."""
        now, request = transfer.arrives, transfer.record.request
        for replica in self.decode:
            self._finished += replica.engine.run_until(now)
        tokens = request.tokens() + transfer.first_token
        core = make_request(request, tokens, request.output_len - 1)
        replica = self.routers[1].choose(request, core, self.decode)
        place_blocks(replica.engine.scheduler.kv, core, request.prompt_len)
        replica.submit(core, transfer.record, now)

    def _report(self) -> DisaggregatedReport:
        recorders = [replica.engine.recorder for replica in (*self.prefill, *self.decode)]
        for replica in self.decode:  # hits there are transfers, not reuse
            replica.engine.recorder.prefix_queries = replica.engine.recorder.prefix_hits = 0
        rejected = [entry for replica in (*self.prefill, *self.decode) for entry in replica.engine.rejected]
        num_usable = self.decode[0].engine.scheduler.kv.pool.num_usable
        return DisaggregatedReport(
            summarise(recorders, num_usable, rejected, self._finished),
            [replica.report() for replica in self.prefill],
            [replica.report() for replica in self.decode],
            self._count,
            self._bytes,
            self._seconds / self._count if self._count else 0.0,
        )


def place_blocks(kv: KVManager, core: Request, num_tokens: int) -> int:
    """Cache the full blocks of the first `num_tokens` tokens while there is room. Return how many are cached."""
    kv.add(core)
    held = []
    for block_hash in core.block_hashes[: num_tokens // kv.block_size]:
        block = kv.pool.cached.get(block_hash)
        if block is not None:
            kv.pool.touch(block)
        elif len(kv.pool.free):
            block = kv.pool.take(1)[0]
            kv.pool.register(block, block_hash)
        else:
            break
        held.append(block)
    kv.pool.release(held)
    return len(held)

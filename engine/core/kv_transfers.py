"""Loads and sends as the scheduler sees them: blocks that belong to a transfer instead of a request.

    a load    take blocks -> worker fills and verifies them -> publish the good ones -> release all
    a send    a finished request's blocks get one more owner -> worker sends them -> release

While bytes move, the transfer owns the blocks: whatever happens to the request meanwhile (it is aborted, or its id is
used again), no other request can get them. A block that arrived is an ordinary cached block: free, published, at the
back of the eviction queue.

Source: vLLM v1/core/sched/scheduler.py (WAITING_FOR_REMOTE_KVS, _update_waiting_for_remote_kv, delay_free_blocks);
its issues #43226, #46240 and #56089 show what happens when the request owns the blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Literal

from engine.core.admission_resource import AdmissionResource
from engine.core.blocks import Block
from engine.core.connector import BlockTransfer, KVConnectorOutput, KVConnectorScheduler
from engine.core.errors import WorkerContractError
from engine.core.kv_manager import KVManager, PrefixHit
from engine.core.request import Request, RequestStatus
from engine.core.sched_output import ModelRunnerOutput, NotScheduled, Reason, SchedulerOutput
from engine.core.stats import StepStats

_COMPLETE = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH)


@dataclass(slots=True)
class _Load:
    request: Request
    hit: list[Block]
    """Cached blocks in front of the loaded ones. Evicting them would make those unreachable."""
    blocks: list[Block]
    block_hashes: list[bytes]


class KVTransfers(AdmissionResource):
    """Everything between the scheduler and the scheduler half of its connector."""

    def __init__(
        self,
        kv: KVManager,
        connector: KVConnectorScheduler,
        load_failure_policy: Literal["recompute", "fail"] = "recompute",
    ) -> None:
        self._kv = kv
        self._connector = connector
        self._load_failure_policy = load_failure_policy
        self._ids = count()
        self._loads: dict[int, _Load] = {}
        self._loading: set[Request] = set()
        self._arriving: set[bytes] = set()
        """Hashes of the blocks of all loads: a second request for them waits instead of loading them again."""
        self._sends: dict[int, list[Block]] = {}
        self._new_loads: list[BlockTransfer] = []
        self._new_saves: list[BlockTransfer] = []
        """Transfers that began since the last step that ran: after an interrupted step they are announced again."""
        self._num_told = (0, 0)
        """Number of both that the planned step announces to the worker."""

    @property
    def num_unfinished(self) -> int:
        """Transfers that have not ended."""
        return len(self._loads) + len(self._sends)

    def held_blocks(self) -> Iterator[Block]:
        for load in self._loads.values():
            yield from load.hit
            yield from load.blocks
        for blocks in self._sends.values():
            yield from blocks

    # -- in

    def why_not(self, request: Request, stats: StepStats) -> NotScheduled | None:
        """Begin to load what exists elsewhere, before the request starts. Returns why it waits, or None."""
        if request in self._loading:
            return self._wait(request, stats)
        if request.has_fetched:
            return None
        hit = self._kv.match(request)
        if self._kv.in_flight_for(request, hit) is not None:
            return None  # the request waits for another row of this step, and does not start
        wanted = self._kv.hashes_behind(request, len(hit.device))
        if wanted and wanted[0] in self._arriving:
            return self._wait(request, stats)
        num_elsewhere = self._num_elsewhere(request, hit, len(wanted)) if wanted else None
        fetched = wanted[: num_elsewhere or 0]
        if fetched and not self._kv.has_room_to_start(request, hit, request.num_tokens):
            return None  # it lacks blocks, and does not start
        request.has_fetched = True
        self._connector.update_state_after_alloc(request, len(fetched) * self._kv.block_size)
        if num_elsewhere is not None:
            num_cached = hit.num_blocks * self._kv.block_size
            stats.external_prefix_cache_queries += request.num_tokens - num_cached
        if not fetched:
            return None
        self._begin_load(request, hit.device, fetched)
        return self._wait(request, stats)

    def _num_elsewhere(self, request: Request, hit: PrefixHit, most: int) -> int | None:
        """Return how many blocks to load behind those on the device: 0 unless they reach beyond the host's."""
        size = self._kv.block_size
        num_tokens = self._connector.get_num_new_matched_tokens(request, len(hit.device) * size)
        if num_tokens is None:
            return None
        num_blocks = min(num_tokens // size, most)
        return num_blocks if num_blocks > len(hit.host) else 0

    def _begin_load(self, request: Request, hit: list[Block], hashes: list[bytes]) -> None:
        for block in hit:
            self._kv.pool.touch(block)
        blocks = self._kv.pool.take(len(hashes))
        transfer_id = next(self._ids)
        self._loads[transfer_id] = _Load(request, hit, blocks, hashes)
        self._loading.add(request)
        self._arriving.update(hashes)
        block_ids = [block.block_id for block in blocks]
        params = request.kv_transfer_params or {}
        self._new_loads.append(BlockTransfer(transfer_id, block_ids, hashes, params))

    def _wait(self, request: Request, stats: StepStats) -> NotScheduled:
        stats.num_kv_waits += 1
        return NotScheduled(request.request_id, Reason.KV_TRANSFER, {"loads": len(self._loads)})

    def _end_load(self, transfer_id: int, num_good: int, stats: StepStats) -> Request | None:
        """Publish the blocks that arrived. Returns the request if some are missing."""
        load = self._loads.pop(transfer_id, None)
        if load is None or not 0 <= num_good <= len(load.blocks):
            raise WorkerContractError(f"the KV connector reports {num_good} blocks of load {transfer_id}")
        pool = self._kv.pool
        for block, block_hash in zip(load.blocks[:num_good], load.block_hashes, strict=False):
            pool.register(block, block_hash)
        pool.release([*load.hit, *load.blocks])
        self._loading.discard(load.request)
        self._arriving.difference_update(load.block_hashes)
        load.request.num_external_tokens = num_good * self._kv.block_size
        load.request.external_source = getattr(self._connector, "source", "external_unspecified")
        stats.external_prefix_cache_hits += load.request.num_external_tokens
        is_short = num_good < len(load.blocks)
        stats.num_kv_load_failures += is_short
        return load.request if is_short else None

    # -- out

    def finish(self, request: Request) -> None:
        """Keep the blocks that others will fetch, and set the parameters of the request's last output."""
        num_blocks = request.num_published_blocks if request.status in _COMPLETE else 0
        blocks = request.blocks[:num_blocks]
        block_ids = [block.block_id for block in blocks]
        keeps, params = self._connector.request_finished(request, block_ids)
        if keeps and blocks:
            for block in blocks:
                self._kv.pool.touch(block)
            transfer_id = next(self._ids)
            self._sends[transfer_id] = blocks
            hashes = request.block_hashes[:num_blocks]
            self._new_saves.append(BlockTransfer(transfer_id, block_ids, hashes, params or {}))
        request.kv_handoff = params

    def _end_send(self, transfer_id: int) -> None:
        blocks = self._sends.pop(transfer_id, None)
        if blocks is None:
            raise WorkerContractError(f"the KV connector ends send {transfer_id}, which does not exist")
        self._kv.pool.release(blocks)

    # -- one step

    def close_step(self, out: SchedulerOutput, stats: StepStats) -> None:
        """Announce what began since the last step that ran to the worker half."""
        self._num_told = (len(self._new_loads), len(self._new_saves))
        loads, saves = list(self._new_loads), list(self._new_saves)
        out.kv_connector_metadata = self._connector.build_connector_meta(loads, saves)

    def end_step(self, result: ModelRunnerOutput, stats: StepStats) -> list[tuple[Request, str]]:
        """Take in the transfers that ended. With the policy "fail", requests that miss blocks cannot go on."""
        num_loads, num_saves = self._num_told
        del self._new_loads[:num_loads], self._new_saves[:num_saves]
        self._num_told = (0, 0)
        ended: KVConnectorOutput | None = result.kv_connector_output
        if ended is None:
            return []
        stats.kv_bytes_received += ended.num_bytes_received
        stats.kv_bytes_sent += ended.num_bytes_sent
        stats.num_kv_save_failures += ended.num_save_failures
        for transfer_id in ended.finished_sending:
            self._end_send(transfer_id)
        short = [self._end_load(*load, stats) for load in ended.finished_recving.items()]
        if self._load_failure_policy == "recompute":
            return []
        message = "its KV could not be loaded from another engine, and kv_load_failure_policy is 'fail'"
        return [(request, message) for request in short if request and not request.status.is_finished]

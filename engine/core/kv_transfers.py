"""Loads and sends as the scheduler sees them: blocks that belong to a transfer instead of a request.

    a load    take blocks -> worker fills and verifies them -> publish the good ones -> let go of all
    a send    a finished request's blocks get one owner more -> worker sends them -> let go

Both have the same safety: while bytes move, the transfer owns the blocks, so whatever becomes of the request
(aborted, its id used again, finished twice over) nobody else can get them, and no end has to wait for another.
A block that arrived is an ordinary cached block: free, published, at the back of the eviction queue. So nothing
that has arrived can hold up the scheduler, and losing a block again costs time, never correctness.

Source: vLLM v1/core/sched/scheduler.py (WAITING_FOR_REMOTE_KVS, _update_waiting_for_remote_kv, delay_free_blocks);
its issues #43226, #46240 and #56089 are what happens when the request owns the blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from engine.core.blocks import Block
from engine.core.connector import BlockTransfer, KVConnectorOutput, KVConnectorScheduler
from engine.core.errors import WorkerContractError
from engine.core.kv_manager import KVManager, PrefixHit
from engine.core.request import Request, RequestStatus
from engine.core.sched_output import NotScheduled, Reason
from engine.core.stats import StepStats

_COMPLETE = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH)


@dataclass(slots=True)
class _Load:
    request: Request
    hit: list[Block]
    """Cached blocks in front of those that come: kept, or the new ones could not be reached."""
    blocks: list[Block]
    block_hashes: list[bytes]


class KVTransfers:
    """Everything between the scheduler and the scheduler half of its connector."""

    def __init__(self, kv: KVManager, connector: KVConnectorScheduler) -> None:
        self._kv = kv
        self._connector = connector
        self._ids = count()
        self._loads: dict[int, _Load] = {}
        self._loading: set[Request] = set()
        self._arriving: set[bytes] = set()
        """Hashes of the blocks of all loads: a second request for them waits instead of loading them again."""
        self._sends: dict[int, list[Block]] = {}
        self._new_loads: list[BlockTransfer] = []
        self._new_saves: list[BlockTransfer] = []
        """What began since the last step that ran. A step that was interrupted has told nobody for certain."""
        self._num_told = (0, 0)
        """How many of them the planned step tells the worker."""

    def __len__(self) -> int:
        """Transfers that have not ended."""
        return len(self._loads) + len(self._sends)

    @property
    def source(self) -> str:
        """What the tokens of a load are counted as."""
        return getattr(self._connector, "source", "external_unspecified")

    def held_blocks(self) -> Iterator[Block]:
        """A block for every time that a transfer owns it."""
        for load in self._loads.values():
            yield from load.hit
            yield from load.blocks
        for blocks in self._sends.values():
            yield from blocks

    # -- in

    def fetch(self, request: Request, hit: PrefixHit, stats: StepStats) -> NotScheduled | None:
        """Before a request starts: begin to load what exists elsewhere. Why it waits, or None if it need not."""
        if request in self._loading:
            return self._wait(request, stats)
        if request.has_fetched:
            return None
        wanted = self._kv.hashes_behind(request, len(hit.device))
        if wanted and wanted[0] in self._arriving:
            return self._wait(request, stats)
        num_elsewhere = self._num_elsewhere(request, hit, len(wanted)) if wanted else None
        found = wanted[: num_elsewhere or 0]
        if found and not self._kv.has_room_to_start(request, hit, request.num_tokens):
            return None  # it cannot start anyway; the caller says so
        request.has_fetched = True
        self._connector.update_state_after_alloc(request, len(found) * self._kv.block_size)
        if num_elsewhere is not None:
            num_cached = hit.num_blocks * self._kv.block_size
            stats.external_prefix_cache_queries += request.num_tokens - num_cached
        if not found:
            return None
        self._begin_load(request, hit.device, found)
        return self._wait(request, stats)

    def _num_elsewhere(self, request: Request, hit: PrefixHit, most: int) -> int | None:
        """Blocks to load behind those on the device: none unless they reach further than the host's."""
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
        self._new_loads.append(
            BlockTransfer(transfer_id, block_ids, hashes, request.kv_transfer_params or {})
        )

    def _wait(self, request: Request, stats: StepStats) -> NotScheduled:
        stats.num_kv_waits += 1
        return NotScheduled(request.request_id, Reason.KV_TRANSFER, {"loads": len(self._loads)})

    def _end_load(self, transfer_id: int, num_good: int, stats: StepStats) -> Request | None:
        """Publish what arrived; returns the request if something is missing."""
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
        stats.external_prefix_cache_hits += load.request.num_external_tokens
        if num_good == len(load.blocks):
            return None
        stats.num_kv_load_failures += 1
        return load.request

    # -- out

    def request_finished(self, request: Request, status: RequestStatus) -> dict[str, Any] | None:
        """Before its blocks are freed: keep those that others will fetch. The params for its last output."""
        num_blocks = request.num_published_blocks if status in _COMPLETE else 0
        blocks = request.blocks[:num_blocks]
        keeps, params = self._connector.request_finished(request, [block.block_id for block in blocks])
        if keeps and blocks:
            for block in blocks:
                self._kv.pool.touch(block)
            transfer_id = next(self._ids)
            self._sends[transfer_id] = blocks
            block_ids = [block.block_id for block in blocks]
            hashes = request.block_hashes[:num_blocks]
            self._new_saves.append(BlockTransfer(transfer_id, block_ids, hashes, params or {}))
        return params

    def _end_send(self, transfer_id: int) -> None:
        blocks = self._sends.pop(transfer_id, None)
        if blocks is None:
            raise WorkerContractError(f"the KV connector ends send {transfer_id}, which does not exist")
        self._kv.pool.release(blocks)

    # -- one step

    def build_meta(self) -> Any:
        """What began since the last step that ran, for the worker half."""
        self._num_told = (len(self._new_loads), len(self._new_saves))
        return self._connector.build_connector_meta(list(self._new_loads), list(self._new_saves))

    def end_step(self) -> None:
        """The planned step ran: the worker half knows what it was told."""
        num_loads, num_saves = self._num_told
        del self._new_loads[:num_loads], self._new_saves[:num_saves]
        self._num_told = (0, 0)

    def update(self, output: KVConnectorOutput, stats: StepStats) -> list[Request]:
        """Take in what ended. Returns the requests that did not get all they were promised."""
        stats.kv_bytes_received += output.num_bytes_received
        stats.kv_bytes_sent += output.num_bytes_sent
        stats.num_kv_save_failures += output.num_save_failures
        for transfer_id in output.finished_sending:
            self._end_send(transfer_id)
        ended = (self._end_load(*load, stats) for load in output.finished_recving.items())
        return [request for request in ended if request is not None]

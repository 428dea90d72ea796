"""Invariants of the core between two calls of the scheduler, each with the sentence that reports its violation.

Tests and `debug_checks` evaluate them after every step.
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from engine.config import SchedulerConfig
from engine.core.admission_resource import AdmissionResource
from engine.core.kv_manager import KVManager
from engine.core.queues import HeapQueue
from engine.core.request import Request
from prep_common.text import counted


class CoreState(Protocol):
    """The state of a scheduler that the invariants are about."""

    config: SchedulerConfig
    kv: KVManager
    resources: list[AdmissionResource]
    requests: dict[str, Request]
    waiting: HeapQueue
    running: list[Request]


def find_problems(scheduler: CoreState, max_running: int = 0) -> list[str]:
    """Return every violation: of the pool, the queues, the requests and the owners of blocks.

    max_running: this many may run in any case, as when max_num_seqs was lowered while they ran.
    """
    kv, waiting, running = scheduler.kv, list(scheduler.waiting), scheduler.running
    max_num_seqs = scheduler.config.max_num_seqs
    problems = kv.check_integrity(scheduler.requests.values())
    for resource in scheduler.resources:
        problems += resource.check_integrity(running, waiting)

    # A request either waits or runs; `running` is sorted and not longer than max_num_seqs.
    if sorted(r.request_id for r in [*waiting, *running]) != sorted(scheduler.requests):
        problems.append("the waiting and the running are not the unfinished requests")
    if running != sorted(running, key=lambda request: request.sort_key):
        problems.append("running is not sorted by importance")
    if len(running) > max(max_running, max_num_seqs):
        problems.append(f"the batch has {counted(len(running), 'request')}, max_num_seqs is {max_num_seqs}")

    # A waiting request holds no blocks; a running one has blocks for its computed tokens, and more to compute.
    for request in waiting:
        if request.blocks or request.num_computed_tokens or request.num_published_blocks:
            problems.append(f"{request.request_id} waits and has blocks, computed or published tokens")
    for request in running:
        if request.host_blocks:
            problems.append(f"{request.request_id} runs and still owns host blocks")
        if len(request.blocks) < kv.num_blocks_for(request.num_computed_tokens):
            problems.append(f"{request.request_id} has computed more tokens than its blocks hold")
        if request.num_computed_tokens >= request.num_tokens:
            problems.append(f"{request.request_id} runs with nothing left to compute")

    # Only running requests and resources own blocks, and a block's ref_count is the number of its owners.
    owners: Counter[int] = Counter()
    for request in running:
        owners.update(block.block_id for block in request.blocks[request.num_blocks_behind_window :])
    for resource in scheduler.resources:
        owners.update(block.block_id for block in resource.held_blocks())
    for block in kv.pool.blocks:
        if block.ref_count != owners[block.block_id]:
            problems.append(f"{block} has {owners[block.block_id]} owners")
    return problems

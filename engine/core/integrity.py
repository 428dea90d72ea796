"""What is always true of the core between two calls of the scheduler, each rule one sentence of the error.

Tests and `debug_checks` ask after every step; nothing here changes anything.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from engine.core.request import RequestStatus

if TYPE_CHECKING:
    from engine.core.scheduler import Scheduler


def find_problems(scheduler: Scheduler, max_running: int = 0) -> list[str]:
    """Every violation: of the pool's rules, of who waits or runs, of what the running hold, of who owns blocks.

    max_running: so many may run in any case, as when max_num_seqs was lowered beneath them.
    """
    kv = scheduler.kv
    return [
        *kv.check_integrity(scheduler.requests.values()),
        *_problems_of_the_queues(scheduler, max(max_running, scheduler.config.max_num_seqs)),
        *_problems_of_requests(scheduler),
        *_problems_of_owners(scheduler),
    ]


def _problems_of_the_queues(scheduler: Scheduler, most: int) -> list[str]:
    """A request waits or runs, never both; `running` is sorted and no longer than it may be."""
    problems = []
    waiting, running = list(scheduler.waiting), scheduler.running
    if sorted(r.request_id for r in [*waiting, *running]) != sorted(scheduler.requests):
        problems.append("the waiting and the running are not the unfinished requests")
    if running != sorted(running, key=lambda request: request.sort_key):
        problems.append("running is not sorted by importance")
    if len(running) > most:
        problems.append(f"{len(running)} requests run, max_num_seqs is {scheduler.config.max_num_seqs}")
    waits_for_grammar = {r.request_id for r in waiting if r.status is RequestStatus.WAITING_GRAMMAR}
    if set(scheduler.compiling) != waits_for_grammar:
        problems.append("the compiling are not those who wait for a grammar")
    return problems


def _problems_of_requests(scheduler: Scheduler) -> list[str]:
    """Who waits holds nothing; who runs holds enough for what it has computed, and has more to compute."""
    problems = []
    for request in scheduler.waiting:
        if request.blocks or request.num_computed_tokens or request.num_published_blocks:
            problems.append(f"{request.request_id} waits and has blocks, computed or published tokens")
    for request in scheduler.running:
        if request.host_blocks:
            problems.append(f"{request.request_id} runs and still owns host blocks")
        if len(request.blocks) < scheduler.kv.num_blocks_for(request.num_computed_tokens):
            problems.append(f"{request.request_id} has computed more tokens than its blocks hold")
        if request.num_computed_tokens >= request.num_tokens:
            problems.append(f"{request.request_id} runs with nothing left to compute")
    return problems


def _problems_of_owners(scheduler: Scheduler) -> list[str]:
    """Only the running and KV transfers own blocks, and a block's ref_count is the number of its owners; adapter
    slots and images are held by the running alone."""
    problems = []
    if scheduler.lora is not None:
        problems += scheduler.lora.problems(Counter(r.lora_key for r in scheduler.running if r.lora_key))
    problems += scheduler.encoder_cache.check_integrity({request.request_id for request in scheduler.running})
    owners = Counter(
        block.block_id
        for request in scheduler.running
        for block in request.blocks[request.num_blocks_behind_window :]
    )
    if scheduler.transfers is not None:
        owners.update(block.block_id for block in scheduler.transfers.held_blocks())
    for block in scheduler.kv.pool.blocks:
        if block.ref_count != owners[block.block_id]:
            problems.append(f"{block} has {owners[block.block_id]} owners")
    return problems

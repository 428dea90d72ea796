"""The shadow KV: a worker without a model that knows what every cache slot must hold.

Every slot of the cache stores the digest of the token prefix it was computed from, adapter and salt
included, and so does every slot of the host tier: blocks are really copied. A fake forward pass verifies
each slot before it reads it and derives the next token from the digest alone. So one run of a random
workload checks at once that

    - no row ever reads KV that was not written, or was written for another prefix, wherever it was meanwhile;
    - the outputs are those of generating each request alone;
    - every step keeps the rules listed in `StepRules`.

Like a real worker it knows only what `SchedulerOutput` tells it: it keeps its own block tables and
token ids and never looks at a Request.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from engine.config import TierConfig
from engine.core.blocks import Block
from engine.core.errors import RequestRejected
from engine.core.request import Request, RequestStatus
from engine.core.sched_output import (
    PASSED_OVER,
    EngineCoreOutput,
    ModelRunnerOutput,
    Reason,
    Scheduled,
    SchedulerOutput,
    TokenLogprobs,
    reason_of,
)
from engine.core.scheduler import MAX_DEFERRED_PER_STEP, Scheduler
from tests.core.shadow_grammar import Compiling, dislikes
from tests.core.workloads import (
    VOCAB,
    Ask,
    Digest,
    Moment,
    Workload,
    extend_digest,
    generate_alone,
    next_token,
    root_digest,
)

Pairs = list[tuple[int, int]]


class ShadowError(AssertionError):
    """The core broke a rule."""


def require(condition: bool, complaint: str, *facts: object) -> None:
    """Raise ShadowError with the facts unless the condition holds. Facts are formatted only for a complaint."""
    if not condition:
        raise ShadowError(": ".join([complaint, *map(_brief, facts)]))


def _brief(fact: object) -> str:
    if isinstance(fact, Scheduled):
        drafts = f", drafts {fact.spec_token_ids}" if fact.spec_token_ids else ""
        kind = "starts" if fact.init else "goes on"
        return (
            f"{kind} at {fact.start} with {fact.num_tokens} tokens, new blocks {fact.new_block_ids}{drafts}"
        )
    return str(fact)


# -- the worker


@dataclass
class Slot:
    """A worker's state of one request, like a row of a real worker's tables."""

    token_ids: list[int]
    digests: list[Digest]
    """digests[i] is that of token_ids[: i + 1] behind the root."""
    root: Digest
    block_table: list[int]
    num_prompt_tokens: int
    wants_prompt_logprobs: bool
    lora_key: str | None = None
    num_computed: int = 0

    def append(self, token_ids: list[int]) -> None:
        for token_id in token_ids:
            self.digests.append(extend_digest(self.digests[-1] if self.digests else self.root, token_id))
            self.token_ids.append(token_id)

    def truncate(self, length: int) -> None:
        del self.token_ids[length:], self.digests[length:]


class ShadowWorker:
    """Executes SchedulerOutputs against a cache of digests."""

    def __init__(
        self,
        block_size: int,
        draft_length: int = 0,
        draft_quality: float = 1.0,
        seed: int = 0,
        sliding_window: int | None = None,
        num_host_blocks: int = 0,
    ) -> None:
        self.block_size = block_size
        self.sliding_window = sliding_window
        self.num_host_blocks = num_host_blocks
        self.cache: dict[int, Digest] = {}
        """Slot number (block_id * block_size + offset) -> digest of the prefix that was written there."""
        self.host_cache: dict[int, Digest] = {}
        """The same for host blocks."""
        self.slots: dict[str, Slot] = {}
        self.adapters: dict[int, str] = {}
        """Adapter in each slot."""
        self.num_lora_slots = 0
        """0: adapters take no place."""
        self.roots: dict[str, Digest] = {}
        """Root digests by request id, set by the harness: a real worker has the adapter and needs no salt."""
        self._unknown: set[str] = set()
        """Started in a step that was lost."""
        self._draft_length = draft_length
        self._draft_quality = draft_quality
        self._rng = random.Random(seed)

    def lose(self, out: SchedulerOutput) -> None:
        """Drop a step that never reached this worker. Requests that it started are unknown when they end."""
        for request_id in [*out.finished_request_ids, *out.preempted_request_ids]:
            self.slots.pop(request_id, None)
        self._unknown |= {row.request_id for row in out.scheduled if row.init is not None}

    def execute(self, out: SchedulerOutput) -> ModelRunnerOutput:
        for request_id in [r for r in out.finished_request_ids if r in self._unknown]:
            self._unknown.discard(request_id)
            out.finished_request_ids.remove(request_id)
        for request_id in [*out.finished_request_ids, *out.preempted_request_ids]:
            require(request_id in self.slots, f"{request_id} frees a worker slot that it does not have")
            del self.slots[request_id]
        self._copy(out)
        for key, slot in out.lora_loads:
            require(0 <= slot < self.num_lora_slots, "an adapter is loaded where there is no slot", slot)
            self.adapters = {s: k for s, k in self.adapters.items() if k != key} | {slot: key}
        for row in out.scheduled:
            self._apply(row)
        self._fetch_ahead(out)
        for row in out.scheduled:  # all reads of old KV come before the step's writes
            self._verify(row, self.slots[row.request_id], 0, row.start)
        written: set[int] = set()
        for row in out.scheduled:
            self._write(row, self.slots[row.request_id], written)
        result = ModelRunnerOutput()
        for row in out.scheduled:
            self._finish_row(row, self.slots[row.request_id], result)
        return result

    def _fetch_ahead(self, out: SchedulerOutput) -> None:
        """Fill slots while the step runs: those whose adapter no request of this worker uses."""
        in_use = {slot.lora_key for slot in self.slots.values() if slot.lora_key}
        for key, slot in out.lora_prefetches:
            require(slot < self.num_lora_slots, "an adapter is fetched into a slot that there is not", slot)
            if slot >= 0:
                require(
                    self.adapters.get(slot) not in in_use,
                    f"slot {slot} is in use, and {key} replaces its adapter",
                )
                self.adapters = {s: k for s, k in self.adapters.items() if k != key} | {slot: key}

    def _copy(self, out: SchedulerOutput) -> None:
        """Copy out, then in: only whole written blocks, none read and written in one step."""
        from_device, to_host = [d for d, _ in out.copy_out], [h for _, h in out.copy_out]
        from_host, to_device = [h for h, _ in out.copy_in], [d for _, d in out.copy_in]
        for host_block in to_host + from_host:
            require(1 <= host_block <= self.num_host_blocks, "no such host block", host_block)
        for targets in (to_host, to_device):
            require(len(set(targets)) == len(targets), "two copies into one block", targets)
        require(
            not set(to_host) & set(from_host), "a host block is written and read in one step", out.copy_in
        )
        require(0 not in from_device + to_device, "the null block is copied", out.copy_out, out.copy_in)
        fresh = {block for row in out.scheduled if row.init for block in row.new_block_ids}
        require(set(to_device) <= fresh, "a copy into a block of no request that starts", out.copy_in)
        self._copy_blocks(self.cache, self.host_cache, out.copy_out)
        self._copy_blocks(self.host_cache, self.cache, out.copy_in)

    def _copy_blocks(self, source: dict[int, Digest], target: dict[int, Digest], pairs: Pairs) -> None:
        for origin, destination in pairs:
            for offset in range(self.block_size):
                held = source.get(origin * self.block_size + offset)
                require(held is not None, "a block is copied that was not written", origin, destination)
                target[destination * self.block_size + offset] = held or 0

    def _apply(self, row: Scheduled) -> None:
        if row.init is None:
            require(row.request_id in self.slots, f"{row.request_id} has a row and the worker never met it")
            slot = self.slots[row.request_id]
            slot.block_table += row.new_block_ids
        else:
            require(row.request_id not in self.slots, f"{row.request_id} starts twice")
            slot = Slot(
                token_ids=[],
                digests=[],
                root=self.roots[row.request_id],
                block_table=list(row.new_block_ids),
                num_prompt_tokens=row.init.num_prompt_tokens,
                wants_prompt_logprobs=row.init.sampling_params.prompt_logprobs is not None,
                lora_key=row.init.lora_key,
                num_computed=row.start,
            )
            slot.append(row.init.token_ids)
            self.slots[row.request_id] = slot
        end = row.start + row.num_tokens
        if self.num_lora_slots and slot.lora_key:
            require(slot.lora_key in self.adapters.values(), f"{row.request_id} runs without its adapter")
        known = len(slot.token_ids)
        require(row.start == slot.num_computed, f"{row.request_id} skips or repeats tokens", row)
        require(
            len(row.spec_token_ids) == max(0, end - known), f"{row.request_id} has drafts out of place", row
        )
        require(end <= len(slot.block_table) * self.block_size, f"{row.request_id} has too few blocks", row)
        slot.append(row.spec_token_ids)

    def _slot_number(self, slot: Slot, position: int) -> int:
        return slot.block_table[position // self.block_size] * self.block_size + position % self.block_size

    def _verify(self, row: Scheduled, slot: Slot, start: int, end: int) -> None:
        if self.sliding_window is not None:  # the row's first query sees this far back, later ones less
            start = max(start, row.start - self.sliding_window + 1)
        for position in range(start, end):
            held = self.cache.get(self._slot_number(slot, position))
            if held != slot.digests[position]:
                what = "unwritten" if held is None else "another prefix's"
                raise ShadowError(f"{row.request_id} reads {what} KV at position {position}: {_brief(row)}")

    def _write(self, row: Scheduled, slot: Slot, written: set[int]) -> None:
        for position in range(row.start, row.start + row.num_tokens):
            number = self._slot_number(slot, position)
            require(number >= self.block_size, f"{row.request_id} writes into the null block", row)
            require(number not in written, f"{row.request_id} writes a slot that another row writes", row)
            written.add(number)
            self.cache[number] = slot.digests[position]

    def _finish_row(self, row: Scheduled, slot: Slot, result: ModelRunnerOutput) -> None:
        end = row.start + row.num_tokens
        self._verify(row, slot, row.start, end)
        if slot.wants_prompt_logprobs and row.start < slot.num_prompt_tokens - 1:
            targets = slot.token_ids[row.start + 1 : min(end + 1, slot.num_prompt_tokens)]
            result.prompt_logprobs[row.request_id] = [TokenLogprobs([t], [0.0], 1) for t in targets]
        if end < len(slot.token_ids):
            slot.num_computed = end
            return
        num_known = len(slot.token_ids) - len(row.spec_token_ids)
        sampled = self._sample(slot, num_known, row.spec_token_ids)
        result.sampled_token_ids[row.request_id] = sampled
        slot.truncate(num_known)
        slot.append(sampled)
        slot.num_computed = len(slot.token_ids) - 1
        if self._draft_length and self._rng.random() < 0.8:
            result.draft_token_ids[row.request_id] = self._draft(slot)

    def _sample(self, slot: Slot, num_known: int, drafts: list[int]) -> list[int]:
        """The model's token after each position, as long as the drafts agree with it."""
        sampled: list[int] = []
        for index, draft in enumerate([*drafts, None]):
            token_id = next_token(slot.digests[num_known - 1 + index])
            sampled.append(token_id)
            if token_id != draft:
                break
        return sampled

    def _draft(self, slot: Slot) -> list[int]:
        digest, drafts = slot.digests[-1], []
        for _ in range(self._rng.randint(1, self._draft_length)):
            right = self._rng.random() < self._draft_quality
            token_id = next_token(digest) if right else self._rng.randrange(VOCAB)
            drafts.append(token_id)
            digest = extend_digest(digest, token_id)
        return drafts


# -- rules of every step


class StepRules:
    """Rules of any step, judged from its plan and the public state of the scheduler.

    strict=False: leave out the rules of our own policy, for schedulers that order differently.
    """

    def __init__(self, workload: Workload, strict: bool) -> None:
        self.limits = workload.scheduler
        self.caching = workload.cache.enable_prefix_caching
        self.sliding_window = workload.cache.sliding_window
        self.watermark = int(workload.cache.watermark * workload.cache.num_blocks)
        self.strict = strict
        self.order: dict[str, int] = {}
        """Order of addition, kept by the harness."""

    def check(self, scheduler: Any, out: SchedulerOutput, running_before: set[str]) -> None:
        self.admitted = {row.request_id for row in out.scheduled if row.init is not None}
        self._limits(scheduler, out)
        if self.strict:
            self._reasons(scheduler, out)
            self._importance(scheduler, out, running_before)
            self._truth_of_reasons(scheduler, out)
            self._claims(scheduler, out)
            self._admissions(scheduler, out)

    def _admissions(self, scheduler: Any, out: SchedulerOutput) -> None:
        """A start reserves blocks for all known tokens or for a chunk, and beside others leaves the watermark."""
        for row in out.scheduled:
            known = scheduler.requests[row.request_id].num_tokens
            if row.init is not None and self.sliding_window is None and not self.limits.num_lookahead_tokens:
                reserved = known if self.limits.scheduler_reserve_full_isl else row.start + row.num_tokens
                blocks = scheduler.kv.num_blocks_for(reserved)
                require(
                    len(row.new_block_ids) == blocks, f"starts with blocks for other than {reserved}", row
                )
        if self.admitted and len(scheduler.running) > 1 and not self.limits.num_lookahead_tokens:
            require(len(scheduler.kv.pool.free) >= self.watermark, "the watermark is not free", self.admitted)

    def _limits(self, scheduler: Any, out: SchedulerOutput) -> None:
        limits = self.limits
        ids = [row.request_id for row in out.scheduled]
        require(len(set(ids)) == len(ids), "a request has two rows", ids)
        require(all(row.num_tokens > 0 for row in out.scheduled), "a row computes nothing", out.scheduled)
        require(out.num_scheduled_tokens <= limits.max_num_batched_tokens, "the step is over its budget")
        require(len(scheduler.running) <= limits.max_num_seqs, "more requests run than max_num_seqs")
        require(set(ids) <= {r.request_id for r in scheduler.running}, "a row's request does not run")
        adapters = {r.lora_key for r in scheduler.running if r.lora_key}
        if limits.max_loras:
            require(len(adapters) <= limits.max_loras, "running requests use more adapters than max_loras")
        for row in out.scheduled:
            known = scheduler.requests[row.request_id].num_tokens
            if limits.long_prefill_token_threshold:
                require(row.num_tokens <= limits.long_prefill_token_threshold, "chunk too long", row)
            if not limits.enable_chunked_prefill:
                require(row.start + row.num_tokens >= known, "a prompt was cut", row)

    def _reasons(self, scheduler: Any, out: SchedulerOutput) -> None:
        scheduled = {row.request_id for row in out.scheduled}
        named = [entry.request_id for entry in out.not_scheduled if entry.request_id is not None]
        shared = [entry for entry in out.not_scheduled if entry.request_id is None]
        idle = set(scheduler.requests) - scheduled
        require(len(set(named)) == len(named), "a request has two reasons", out.not_scheduled)
        require(set(named) <= idle, "a reason for a request that is scheduled or gone", out.not_scheduled)
        require(
            len(shared) == (set(named) != idle), f"unexplained or overexplained: {idle} {out.not_scheduled}"
        )
        require(not shared or out.not_scheduled[-1] is shared[0], "the shared reason is not the last")
        for request_id in scheduler.requests:
            has_reason = reason_of(out, request_id) is not None
            require(has_reason != (request_id in scheduled), f"{request_id}: no reason, or one too many")

    def _truth_of_reasons(self, scheduler: Any, out: SchedulerOutput) -> None:
        left = self.limits.max_num_batched_tokens - out.num_scheduled_tokens
        for entry in out.not_scheduled:
            details = entry.details
            if entry.reason is Reason.BUDGET_EXHAUSTED:
                require(left == 0 or details["need"] > details["left"], "budget was left", entry)
            elif entry.reason is Reason.MAX_NUM_SEQS:
                require(len(scheduler.running) == self.limits.max_num_seqs, "there was a seat", entry)
            elif entry.reason in (Reason.NO_BLOCKS, Reason.LOWER_PRIORITY):
                require(details["need"] > details["free"] >= details["evictable"] >= 0, "it fits", entry)
            elif entry.reason is Reason.PREEMPTING:
                require(bool(out.preempted_request_ids), "no request was preempted", entry)
            elif entry.reason is Reason.NO_LORA_SLOT:
                self._slots_are_taken(scheduler, entry.request_id)
            elif entry.reason is Reason.PREFIX_IN_FLIGHT:
                require(self.caching and bool(out.scheduled), "nothing is in flight", entry)
            elif entry.reason is Reason.BEHIND_IN_QUEUE and entry.request_id is not None:
                self._is_kept_out(scheduler, out, scheduler.requests[entry.request_id])
            elif entry.reason is Reason.BEHIND_IN_QUEUE:
                in_front = any(
                    other.reason not in PASSED_OVER and other is not entry for other in out.not_scheduled
                )
                require(
                    in_front or details["passed"] >= MAX_DEFERRED_PER_STEP, "no request is in front", entry
                )
            elif entry.reason is Reason.KV_TRANSFER:
                most = sum(resource.num_unfinished for resource in scheduler.resources)
                require(0 < details["loads"] <= most, "nothing is on its way", entry)
            elif entry.reason is Reason.GRAMMAR_COMPILING:
                status = scheduler.requests[entry.request_id].status
                require(status is RequestStatus.WAITING_GRAMMAR, "its grammar is ready", entry)

    def _claimants(
        self, scheduler: Any, out: SchedulerOutput, request: Request
    ) -> list[tuple[Request, Reason]]:
        """The requests that were passed over and keep a seat and blocks from `request`."""
        passed = [
            (scheduler.requests[e.request_id], e.reason) for e in out.not_scheduled if e.reason in PASSED_OVER
        ]
        return [
            (each, reason)
            for each, reason in passed
            if each.sort_key < request.sort_key
            and (reason is Reason.PREFIX_IN_FLIGHT or each.sort_key[0] < request.sort_key[0])
        ]

    def _is_kept_out(self, scheduler: Any, out: SchedulerOutput, request: Request) -> None:
        """A request was refused for the claims of others: with it, one of them would lack something."""
        claimants = self._claimants(scheduler, out, request)
        left = self.limits.max_num_batched_tokens - out.num_scheduled_tokens
        lacks_seat = len(scheduler.running) + len(claimants) >= self.limits.max_num_seqs
        most = sum(
            scheduler.kv.num_blocks_for(each.num_tokens) for each in [request, *(c for c, _ in claimants)]
        )
        lacks_blocks = most + self.watermark > len(scheduler.kv.pool.free)
        starts_next = any(reason is Reason.PREFIX_IN_FLIGHT for _, reason in claimants)
        lacks_budget = starts_next and request.num_tokens > left
        require(bool(claimants), f"{request.request_id} waits behind claims, and there are none")
        require(lacks_seat or lacks_blocks or lacks_budget, f"{request.request_id} would be in no way")

    def _claims(self, scheduler: Any, out: SchedulerOutput) -> None:
        """Requests that start leave a seat, blocks and budget for those that were passed over."""
        computed = {block_hash for r in scheduler.running for block_hash in r.block_hashes}
        computed |= {block_hash for block_hash, block in scheduler.kv.pool.cached.items() if block.ref_count}
        for row in out.scheduled:
            if row.init is None:
                continue
            request = scheduler.requests[row.request_id]
            claimants = self._claimants(scheduler, out, request)
            if not claimants:
                continue
            seats = len(scheduler.running) + len(claimants)
            require(seats <= self.limits.max_num_seqs, f"{row.request_id} takes the seat of one passed over")
            if any(reason is Reason.PREFIX_IN_FLIGHT for _, reason in claimants):
                is_cut = row.start + row.num_tokens < request.num_tokens
                may = not is_cut or self.limits.long_prefill_token_threshold
                require(bool(may), f"{row.request_id} takes the next step's budget of one passed over", row)
            if self.sliding_window is None and not self.limits.num_lookahead_tokens:
                least = sum(self._least_to_start(scheduler, each, computed) for each, _ in claimants)
                free = len(scheduler.kv.pool.free)
                require(least <= free, f"{row.request_id} takes blocks of one passed over", least, free)

    def _least_to_start(self, scheduler: Any, request: Request, computed: set[bytes]) -> int:
        """Free blocks that a waiting request needs even if it shares all that running requests have or compute."""
        hashes = request.block_hashes if scheduler.kv.reads_cache(request) else []
        num_shared = next((i for i, each in enumerate(hashes) if each not in computed), len(hashes))
        return int(scheduler.kv.num_blocks_for(request.num_tokens)) - num_shared

    def _slots_are_taken(self, scheduler: Any, request_id: str | None) -> None:
        """Running requests use all slots, and no later request starts on the adapter of the waiting one."""
        running = [request for request in scheduler.running if request.lora_key]
        adapters = {request.lora_key for request in running}
        require(len(adapters) == self.limits.max_loras, f"{request_id} waits for a slot, and one is idle")
        waiting = scheduler.requests[request_id]
        for request in running:
            if request.request_id in self.admitted and request.lora_key == waiting.lora_key:
                require(request.sort_key < waiting.sort_key, f"{request_id} was overtaken on its own adapter")

    def _importance(self, scheduler: Any, out: SchedulerOutput, running_before: set[str]) -> None:
        def key(request_id: str) -> tuple[int, float, int]:
            request = scheduler.requests[request_id]
            priority = request.priority if self.limits.policy == "priority" else 0
            return priority, request.arrival_time, self.order[request_id]

        scheduled = [row.request_id for row in out.scheduled]
        admitted = [row.request_id for row in out.scheduled if row.init is not None]
        require(not (admitted and out.preempted_request_ids), "the step admits and preempts")
        in_flight = {e.request_id for e in out.not_scheduled if e.reason in PASSED_OVER}
        idle = set(scheduler.requests) - set(scheduled) - in_flight
        overtaken = idle - running_before
        for request_id in admitted:
            require(
                all(key(request_id) < key(other) for other in overtaken), f"{request_id} jumped the queue"
            )
        survivors = [request_id for request_id in scheduled if request_id not in admitted]
        if survivors:
            least = max(map(key, survivors))
            left_out = (idle & running_before) | set(out.preempted_request_ids)
            require(
                all(least < key(other) for other in left_out), "a more important running request lost out"
            )


class EventReplica:
    """Rebuilds block states from events alone, as a trace reader would."""

    def __init__(self, num_blocks: int) -> None:
        self.ref_counts = [0] * num_blocks
        self.hashes: list[bytes | None] = [None] * num_blocks
        self.tables: dict[str, list[int]] = {}

    def on_event(self, kind: str, block: Block, request_id: str | None) -> None:
        number = block.block_id
        if kind in ("alloc", "ref"):
            self.ref_counts[number] += 1
            self.tables.setdefault(request_id or "", []).append(number)
        elif kind in ("unref", "free"):
            self.ref_counts[number] -= 1
            require(
                (kind == "free") == (self.ref_counts[number] == 0), f"{kind} at {self.ref_counts[number]}"
            )
            self.tables[request_id or ""].remove(number)
        elif kind == "seal":
            self.hashes[number] = block.block_hash
        elif kind == "evict":
            require(self.hashes[number] == block.block_hash, "evicts a hash that was never sealed")
            self.hashes[number] = None
        else:
            raise ShadowError(f"unknown event {kind}")

    def check(self, scheduler: Any) -> None:
        blocks = scheduler.kv.pool.blocks
        require(self.ref_counts == [b.ref_count for b in blocks], "events do not add up to the ref counts")
        require(self.hashes == [b.block_hash for b in blocks], "events do not add up to the hashes")
        tables = {r.request_id: [b.block_id for b in r.blocks if b.block_id] for r in scheduler.running}
        held = sorted(b.block_id for resource in scheduler.resources for b in resource.held_blocks())
        nameless = sorted(self.tables.pop("", []))
        require(nameless == held, "blocks without an owner's name are not transfers'")
        self.tables[""] = nameless
        tables[""] = nameless
        require(
            {k: v for k, v in self.tables.items() if v} == {k: v for k, v in tables.items() if v},
            "events do not add up to the block tables",
        )


# -- the run


@dataclass
class Summary:
    """Figures of a run: tests check that the workloads reach the corners they are for."""

    steps: int = 0
    preemptions: int = 0
    hit_tokens: int = 0
    accepted_drafts: int = 0
    rejected_drafts: int = 0
    aborted: int = 0
    evictions: int = 0
    refused: int = 0
    copied_out: int = 0
    copied_in: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


@dataclass
class Received:
    """One request as its client has seen it."""

    ask: Ask
    token_ids: list[int] = field(default_factory=list)
    prompt_logprobs: list[int] = field(default_factory=list)
    last: EngineCoreOutput | None = None


SchedulerFactory = Callable[..., Any]


class Simulation:
    """One workload, run against one scheduler."""

    worker_class: type[ShadowWorker] = ShadowWorker

    def __init__(
        self, workload: Workload, factory: SchedulerFactory = Scheduler, strict: bool = True
    ) -> None:
        self.workload = workload
        self.replica = EventReplica(workload.cache.num_blocks)
        extra = {"on_event": self.replica.on_event} if strict else {}
        self.scheduler = factory(workload.scheduler, workload.cache, **extra)
        self.strict = strict
        self.worker = self.worker_class(
            workload.cache.block_size,
            workload.draft_length,
            workload.draft_quality,
            workload.seed,
            workload.cache.sliding_window,
            workload.cache.tiers.num_host_blocks,
        )
        self.worker.num_lora_slots = workload.scheduler.max_loras
        self.rules = StepRules(workload, strict)
        self.received: dict[str, Received] = {}
        self.compiling: dict[str, Compiling] = {}
        self.summary = Summary()
        self._num_added = 0

    def run(self) -> Summary:
        asks = sorted(self.workload.asks, key=lambda ask: ask.step)
        aborts = self.workload.aborts
        last_event = max([*self.workload.interrupts, *(event.step for event in [*asks, *aborts])], default=0)
        step = 0
        while step <= last_event or self.scheduler.has_unfinished():
            for ask in asks:
                if ask.step == step:
                    self._add(ask)
            self._step(step)
            require(step < last_event + 4000, "the scheduler does not get anywhere")
            step += 1
        self._check_end()
        self.summary.steps = step
        return self.summary

    def _add(self, ask: Ask) -> None:
        expected = generate_alone(ask, self.workload.scheduler, self.workload.cache)
        self.worker.roots[ask.request_id] = root_digest(ask.lora_key, ask.cache_salt)
        self.rules.order[ask.request_id] = self._num_added
        self._num_added += 1
        request = ask.make()
        self.compiling.pop(ask.request_id, None)
        if ask.compile_steps is not None and self.strict:
            compiling = Compiling(ask.step, ask.compile_steps, ask.compile_fails)
            self.compiling[ask.request_id] = compiling
            request.grammar_future = compiling.future
        try:
            self.scheduler.add(request)
        except RequestRejected:
            require(expected.rejected, f"{ask.request_id} was refused and could have run")
            self.summary.refused += 1
        else:
            require(not expected.rejected, f"{ask.request_id} can never run and was accepted")
            self.received[ask.request_id] = Received(ask)

    def _step(self, step: int) -> None:
        self._abort(step, "before")
        for compiling in self.compiling.values():
            compiling.at(step)
        running_before = {request.request_id for request in self.scheduler.running}
        out = self.scheduler.schedule()
        self.rules.check(self.scheduler, out, running_before)
        for row in out.scheduled:
            if row.init is not None:
                received = self.received[row.request_id]
                require(
                    row.init.token_ids == received.ask.prompt + received.token_ids,
                    f"{row.request_id} starts with tokens that are not its own",
                    row,
                )
            if (compiling := self.compiling.get(row.request_id)) is not None:
                require(compiling.future.done(), f"{row.request_id} runs without its grammar")
                require(not any(map(dislikes, row.spec_token_ids)), "a draft that its grammar forbids", row)
        if step in self.workload.interrupts:
            self._interrupt(out)
            return
        self._abort(step, "in_flight")
        result = self.worker.execute(out)
        if self.strict:
            self._check_no_double_work(out, result)
        self._inject_errors(step, out, result)
        for output in self.scheduler.update(out, result):
            self._receive(output)
        self._count(out, result)
        self._abort(step, "after")
        if self.strict:
            self.replica.check(self.scheduler)
        if step % 4 == 0 or not self.scheduler.has_unfinished():
            self.scheduler.check_integrity()

    def _interrupt(self, out: SchedulerOutput) -> None:
        """End all requests and go on, as the engine does when a step stops half-way."""
        self.worker.lose(out)
        for output in self.scheduler.abort(list(self.scheduler.requests)):
            self._receive(output)

    def _inject_errors(self, step: int, out: SchedulerOutput, result: ModelRunnerOutput) -> None:
        rows = {row.request_id for row in out.scheduled}
        for abort in self.workload.aborts:
            if (abort.step, abort.moment) == (step, "error") and abort.request_id in rows:
                result.errors[abort.request_id] = "a planted error"
                result.sampled_token_ids.pop(abort.request_id, None)

    def _check_no_double_work(self, out: SchedulerOutput, result: ModelRunnerOutput) -> None:
        """Raise ShadowError if a request starts with a block that another row of the same step computes.

        A block counts as the other's only if all its tokens were known when the step was planned.
        """
        size = self.workload.cache.block_size
        for index, row in enumerate(out.scheduled):
            if row.init is None or not self._reads_cache(self.received[row.request_id].ask):
                continue
            first, slot = row.start // size, self.worker.slots[row.request_id]
            last = (first + 1) * size - 1
            if last >= len(row.init.token_ids) - 1:
                continue  # the last token is never waited for: it must be computed anyway
            for other in out.scheduled[:index]:
                digests = self.worker.slots[other.request_id].digests
                num_known = len(digests) - len(result.sampled_token_ids.get(other.request_id, []))
                works_on_it = other.start <= last and other.start + other.num_tokens > first * size
                if works_on_it and last < num_known and digests[last] == slot.digests[last]:
                    raise ShadowError(f"{row.request_id} and {other.request_id} compute the same block")

    def _reads_cache(self, ask: Ask) -> bool:
        return (
            self.workload.cache.enable_prefix_caching and ask.prompt_logprobs is None and not ask.skip_reading
        )

    def _abort(self, step: int, moment: Moment) -> None:
        for abort in self.workload.aborts:
            if (abort.step, abort.moment) != (step, moment):
                continue
            lived = abort.request_id in self.scheduler.requests
            outputs = self.scheduler.abort([abort.request_id, "unknown", abort.request_id])
            require(len(outputs) == lived, f"aborting {abort.request_id} gave {outputs}")
            for output in outputs:
                require(output.finish_reason == "abort", f"an abort ended as {output.finish_reason}")
                self._receive(output)
                self.summary.aborted += 1
                if abort.again:
                    ask = self.received[abort.request_id].ask
                    self._check_finished(self.received[abort.request_id])
                    self._add(replace(ask, step=step))

    def _receive(self, output: EngineCoreOutput) -> None:
        received = self.received[output.request_id]
        require(received.last is None, f"{output.request_id} gets output after its last")
        received.token_ids += output.new_token_ids
        received.prompt_logprobs += [entry.token_ids[0] for entry in output.prompt_logprobs or []]
        if output.finish_reason is not None:
            received.last = output

    def _count(self, out: SchedulerOutput, result: ModelRunnerOutput) -> None:
        summary = self.summary
        summary.preemptions += len(out.preempted_request_ids)
        summary.hit_tokens += sum(row.start for row in out.scheduled if row.init is not None)
        for row in out.scheduled:
            accepted = max(0, len(result.sampled_token_ids.get(row.request_id, [])) - 1)
            summary.accepted_drafts += accepted
            summary.rejected_drafts += len(row.spec_token_ids) - accepted
        summary.copied_out += len(out.copy_out)
        summary.copied_in += len(out.copy_in)
        for entry in out.not_scheduled:
            summary.reasons[entry.reason.value] += 1
        if self.strict:
            stats = self.scheduler.stats
            require(stats.num_scheduled_tokens == out.num_scheduled_tokens, "stats miscount scheduled tokens")
            require(stats.num_preempted == len(out.preempted_request_ids), "stats miscount preemptions")
            summary.evictions += stats.num_evictions

    def _check_end(self) -> None:
        for received in self.received.values():
            self._check_finished(received)
        final = self.scheduler.schedule()
        require(not final.scheduled and not final.not_scheduled, "work after the end", final)
        self.scheduler.update(final, self.worker.execute(final))
        require(not self.worker.slots, f"worker slots leaked: {list(self.worker.slots)}")
        self.scheduler.check_integrity()
        if self.strict:
            pool = self.scheduler.kv.pool
            require(pool.num_used == 0 and len(pool.free) == pool.num_usable, "blocks leaked")
            host = self.scheduler.kv.host
            require(host is None or host.pool.num_used == 0, "host blocks leaked")
            require(self.scheduler.reset_prefix_cache() and not pool.cached, "an idle cache refuses to reset")
            require(host is None or not host.pool.cached, "a reset leaves blocks on the host")

    def _check_finished(self, received: Received) -> None:
        ask, last = received.ask, received.last
        if last is None:
            raise ShadowError(f"{ask.request_id} never finished")
        if (compiling := self.compiling.get(ask.request_id)) is not None:
            accepted = compiling.grammar.accepted
            require(accepted == received.token_ids, f"{ask.request_id}'s grammar saw {accepted}", received)
            require(
                not (ask.compile_fails and accepted), f"{ask.request_id} ran with a grammar that is wrong"
            )
        expected = generate_alone(ask, self.workload.scheduler, self.workload.cache)
        if last.finish_reason in ("abort", "error"):
            has_cause = last.error is not None
            require(has_cause == (last.finish_reason == "error"), "an error without a cause", last)
            prefix = expected.token_ids[: len(received.token_ids)]
            require(
                received.token_ids == prefix, f"{ask.request_id}: {received.token_ids} is not {prefix}..."
            )
            return
        got = (received.token_ids, last.finish_reason, last.stop_reason)
        want = (expected.token_ids, expected.finish_reason, expected.stop_reason)
        require(got == want, f"{ask.request_id} gave {got}, alone it gives {want}")
        if ask.prompt_logprobs is not None:
            require(received.prompt_logprobs == ask.prompt[1:], f"{ask.request_id}: wrong prompt logprobs")


def run(workload: Workload, factory: SchedulerFactory = Scheduler, strict: bool = True) -> Summary:
    return Simulation(workload, factory, strict).run()


# -- from a failure to something one can step through


def failure(
    workload: Workload, factory: SchedulerFactory = Scheduler, strict: bool = True
) -> Exception | None:
    try:
        run(workload, factory, strict)
    except Exception as error:
        return error
    return None


def shrink(workload: Workload, factory: SchedulerFactory = Scheduler, strict: bool = True) -> Workload:
    """Leave out requests, aborts, drafts, tokens and features as long as the workload still fails."""
    smaller = True
    while smaller:
        smaller = False
        for candidate in _simpler(workload):
            if failure(candidate, factory, strict) is not None:
                workload, smaller = candidate, True
                break
    return workload


def _simpler(workload: Workload) -> Iterator[Workload]:
    if workload.interrupts:
        yield replace(workload, interrupts=[])
    for name in ("aborts", "asks"):
        items = getattr(workload, name)
        for index in range(len(items)):
            rest = items[:index] + items[index + 1 :]
            if name == "aborts" or rest:
                yield _without_orphans(replace(workload, **{name: rest}))
    if workload.draft_length:
        yield replace(workload, draft_length=0)
    if workload.cache.tiers != TierConfig():
        yield replace(workload, cache=replace(workload.cache, tiers=TierConfig()))
    for index, ask in enumerate(workload.asks):
        plain = Ask(ask.request_id, ask.step, ask.prompt, ask.max_tokens, ask.priority, ask.arrival)
        if ask != plain:
            yield _with_ask(workload, index, plain)
        if len(ask.prompt) > 1:
            yield _with_ask(workload, index, replace(ask, prompt=ask.prompt[: len(ask.prompt) // 2]))
        if ask.step:
            yield _with_ask(workload, index, replace(ask, step=ask.step // 2))


def _with_ask(workload: Workload, index: int, ask: Ask) -> Workload:
    return replace(workload, asks=[*workload.asks[:index], ask, *workload.asks[index + 1 :]])


def _without_orphans(workload: Workload) -> Workload:
    ids = {ask.request_id for ask in workload.asks}
    return replace(workload, aborts=[abort for abort in workload.aborts if abort.request_id in ids])


def explain(workload: Workload, factory: SchedulerFactory = Scheduler, strict: bool = True) -> str:
    """A failure as a text that can be pasted: what went wrong, and the smallest workload that shows it."""
    small = shrink(workload, factory, strict)
    error = failure(small, factory, strict)
    imports = "from tests.core.shadow_kv import run\nfrom tests.core.workloads import *"
    return f"{type(error).__name__}: {error}\n\n{imports}\n\nrun({small!r})\n"

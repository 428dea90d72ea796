"""The shadow KV: a worker without a model that knows what every cache slot must hold.

Every slot of the cache stores the digest of the token prefix it was computed from, adapter and salt
included. A fake forward pass verifies each slot before it reads it and derives the next token from
the digest alone. So one run of a random workload checks at once that

    - no row ever reads KV that was not written, or was written for another prefix;
    - the outputs are those of generating each request alone;
    - every step keeps the rules listed in `StepRules`.

Like a real worker it knows only what `SchedulerOutput` tells it: it keeps its own block tables and
token ids and never looks at a Request.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from engine.config import CacheConfig, SchedulerConfig
from engine.core.blocks import Block
from engine.core.errors import RequestRejected
from engine.core.request import Request
from engine.core.sched_output import (
    EngineCoreOutput,
    ModelRunnerOutput,
    Reason,
    Scheduled,
    SchedulerOutput,
    TokenLogprobs,
    reason_of,
)
from engine.core.scheduler import Scheduler
from engine.sampling_params import SamplingParams

VOCAB = 30
EOS = 7
STOP_ID = 11
Digest = int


class ShadowError(AssertionError):
    """The core did something it must never do."""


def require(condition: bool, complaint: str) -> None:
    if not condition:
        raise ShadowError(complaint)


# -- the model: a token stream that depends on every token before it and on nothing else


def root_digest(lora_key: str | None, cache_salt: str | None) -> Digest:
    return zlib.crc32(repr((lora_key, cache_salt)).encode())


def extend_digest(digest: Digest, token_id: int) -> Digest:
    return hash((digest, token_id))  # of integers: the same in every process


def next_token(digest: Digest) -> int:
    return digest % 1_000_003 % VOCAB


# -- workloads


@dataclass
class Ask:
    """A request of a workload."""

    request_id: str
    step: int
    prompt: list[int]
    max_tokens: int | None = 8
    priority: int = 0
    arrival: float = 0.0
    lora_key: str | None = None
    cache_salt: str | None = None
    eos: bool = True
    ignore_eos: bool = False
    stop_ids: list[int] | None = None
    min_tokens: int = 0
    prompt_logprobs: int | None = None
    skip_reading: bool | None = None

    def make(self) -> Request:
        params = SamplingParams(
            max_tokens=self.max_tokens,
            min_tokens=self.min_tokens,
            ignore_eos=self.ignore_eos,
            stop_token_ids=self.stop_ids,
            prompt_logprobs=self.prompt_logprobs,
            skip_reading_prefix_cache=self.skip_reading,
        )
        return Request(
            self.request_id,
            self.prompt,
            params,
            arrival_time=self.arrival,
            priority=self.priority,
            eos_token_ids=frozenset({EOS} if self.eos else ()),
            lora_key=self.lora_key,
            cache_salt=self.cache_salt,
        )


Moment = Literal["before", "in_flight", "error", "after"]


@dataclass
class Abort:
    """End a request at a step: before it is planned, while it is in flight, or after its update.

    `error` lets the worker report that the request cannot go on, if the step has a row for it.
    """

    request_id: str
    step: int
    moment: Moment
    again: bool = False
    """Add a new request with the same id at once."""


@dataclass
class Workload:
    """Everything that determines a run. Its repr is the call that makes it again."""

    scheduler: SchedulerConfig
    cache: CacheConfig
    asks: list[Ask]
    aborts: list[Abort] = field(default_factory=list)
    draft_length: int = 0
    draft_quality: float = 0.7
    """Chance that a draft token is the right one."""
    seed: int = 0

    @staticmethod
    def random(seed: int) -> Workload:
        rng = random.Random(seed)
        cache = CacheConfig(
            num_blocks=rng.randint(5, 40),
            block_size=rng.choice([1, 2, 4, 4, 8]),
            enable_prefix_caching=rng.random() < 0.85,
        )
        scheduler = _random_limits(rng)
        asks = list(_random_asks(rng, scheduler, cache))
        aborts = [
            Abort(
                rng.choice(asks).request_id,
                step=rng.randint(0, 40),
                moment=rng.choice(["before", "in_flight", "error", "after"]),
                again=rng.random() < 0.3,
            )
            for _ in range(rng.choice([0, 0, 1, 3, 6]))
        ]
        draft_length = rng.choice([0, 0, 1, 3, 5])
        return Workload(scheduler, cache, asks, aborts, draft_length, rng.choice([0.3, 0.8, 1.0]), seed)


def _random_limits(rng: random.Random) -> SchedulerConfig:
    max_model_len = rng.choice([1000, 1000, 60, 24])
    chunked = rng.random() < 0.85
    return SchedulerConfig(
        max_num_batched_tokens=rng.choice([3, 8, 16, 64]) if chunked else max_model_len + rng.choice([0, 8]),
        max_num_seqs=rng.choice([1, 2, 4, 8, 8]),
        max_model_len=max_model_len,
        policy=rng.choice(["fcfs", "priority"]),
        enable_chunked_prefill=chunked,
        long_prefill_token_threshold=rng.choice([0, 0, 1, 4]) if chunked else 0,
    )


def _random_asks(rng: random.Random, scheduler: SchedulerConfig, cache: CacheConfig) -> Iterator[Ask]:
    capacity = (cache.num_blocks - 1) * cache.block_size
    longest = max(1, min(60, capacity * 2 // 3, scheduler.max_model_len))
    shared = [rng.randrange(VOCAB) for _ in range(longest)]
    tenants = [(None, None), (None, None), ("a", None), (None, "a"), ("a", "a")]
    for index in range(rng.randint(2, 12)):
        length = rng.randint(1, longest)
        if rng.random() < 0.3:  # where off-by-one errors live
            length = max(1, length // cache.block_size * cache.block_size)
        if rng.random() < 0.03:
            length = rng.choice([0, scheduler.max_model_len, capacity + 1])
        prompt = shared[: length if rng.random() < 0.3 else rng.randint(0, length)]
        prompt += [rng.randrange(VOCAB) for _ in range(length - len(prompt))]
        lora_key, cache_salt = rng.choice(tenants)
        max_tokens = max(1, min(rng.randint(1, 30), capacity - length + rng.choice([1, 1, 1, 2])))
        yield Ask(
            request_id=f"r{index}",
            step=rng.choice([0, 0, rng.randint(0, 20)]),
            prompt=prompt,
            max_tokens=None if scheduler.max_model_len < capacity and rng.random() < 0.3 else max_tokens,
            priority=rng.choice([0, 0, 1, 2]),
            arrival=float(rng.choice([0, index])),
            lora_key=lora_key,
            cache_salt=cache_salt,
            eos=rng.random() < 0.5,
            ignore_eos=rng.random() < 0.2,
            stop_ids=[STOP_ID, EOS] if rng.random() < 0.2 else None,
            min_tokens=rng.choice([0, 0, 0, min(3, max_tokens)]),
            prompt_logprobs=1 if rng.random() < 0.2 else None,
            skip_reading=rng.choice([None, None, None, False, True]),
        )


@dataclass
class Expected:
    """What generating a request alone gives, computed without the core."""

    rejected: bool
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str = ""
    stop_reason: int | None = None


def generate_alone(ask: Ask, scheduler: SchedulerConfig, cache: CacheConfig) -> Expected:
    room = scheduler.max_model_len - len(ask.prompt)
    longest = room if ask.max_tokens is None else min(ask.max_tokens, room)
    slots = (cache.num_blocks - 1) * cache.block_size
    if not ask.prompt or room <= 0 or len(ask.prompt) + longest - 1 > slots:
        return Expected(rejected=True)
    digest = root_digest(ask.lora_key, ask.cache_salt)
    for token_id in ask.prompt:
        digest = extend_digest(digest, token_id)
    output: list[int] = []
    while len(output) < longest:
        token_id = next_token(digest)
        digest = extend_digest(digest, token_id)
        output.append(token_id)
        if len(output) < ask.min_tokens:
            continue
        if ask.eos and token_id == EOS and not ask.ignore_eos:
            return Expected(False, output, "stop")
        if ask.stop_ids and token_id in ask.stop_ids:
            return Expected(False, output, "stop", token_id)
    return Expected(False, output, "length")


# -- the worker


@dataclass
class Slot:
    """What the worker knows of one request: like a row of a real worker's state tables."""

    token_ids: list[int]
    digests: list[Digest]
    """digests[i] is that of token_ids[: i + 1] behind the root."""
    root: Digest
    block_table: list[int]
    num_prompt_tokens: int
    wants_prompt_logprobs: bool
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
        self, block_size: int, draft_length: int = 0, draft_quality: float = 1.0, seed: int = 0
    ) -> None:
        self.block_size = block_size
        self.cache: dict[int, Digest] = {}
        """Slot number (block_id * block_size + offset) -> digest of the prefix that was written there."""
        self.slots: dict[str, Slot] = {}
        self.roots: dict[str, Digest] = {}
        """By request id, told by the harness: a real worker has the adapter, and salts only part tenants."""
        self._draft_length = draft_length
        self._draft_quality = draft_quality
        self._rng = random.Random(seed)

    def execute(self, out: SchedulerOutput) -> ModelRunnerOutput:
        for request_id in [*out.finished_request_ids, *out.preempted_request_ids]:
            require(request_id in self.slots, f"{request_id} frees a worker slot that it does not have")
            del self.slots[request_id]
        for row in out.scheduled:
            self._apply(row)
        for row in out.scheduled:  # all reads of old KV come before the step's writes
            self._verify(row, self.slots[row.request_id], 0, row.start)
        written: set[int] = set()
        for row in out.scheduled:
            self._write(row, self.slots[row.request_id], written)
        result = ModelRunnerOutput()
        for row in out.scheduled:
            self._finish_row(row, self.slots[row.request_id], result)
        return result

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
                num_computed=row.start,
            )
            slot.append(row.init.token_ids)
            self.slots[row.request_id] = slot
        end = row.start + row.num_tokens
        known = len(slot.token_ids)
        require(row.start == slot.num_computed, f"{row.request_id} skips or repeats tokens: {row}")
        require(
            len(row.spec_token_ids) == max(0, end - known), f"{row.request_id} has drafts out of place: {row}"
        )
        require(end <= len(slot.block_table) * self.block_size, f"{row.request_id} has too few blocks: {row}")
        slot.append(row.spec_token_ids)

    def _slot_number(self, slot: Slot, position: int) -> int:
        return slot.block_table[position // self.block_size] * self.block_size + position % self.block_size

    def _verify(self, row: Scheduled, slot: Slot, start: int, end: int) -> None:
        for position in range(start, end):
            held = self.cache.get(self._slot_number(slot, position))
            if held != slot.digests[position]:
                what = "unwritten" if held is None else "another prefix's"
                raise ShadowError(f"{row.request_id} reads {what} KV at position {position}: {row}")

    def _write(self, row: Scheduled, slot: Slot, written: set[int]) -> None:
        for position in range(row.start, row.start + row.num_tokens):
            number = self._slot_number(slot, position)
            require(number >= self.block_size, f"{row.request_id} writes into the null block: {row}")
            require(number not in written, f"{row.request_id} writes a slot that another row writes: {row}")
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
    """What holds for any step, judged from its output and the public state of the scheduler.

    `strict=False` leaves out what only our own policy promises, for schedulers that order differently.
    """

    def __init__(self, workload: Workload, strict: bool) -> None:
        self.limits = workload.scheduler
        self.caching = workload.cache.enable_prefix_caching
        self.strict = strict
        self.order: dict[str, int] = {}
        """When each request was added, kept by the harness."""

    def check(self, scheduler: Any, out: SchedulerOutput, running_before: set[str]) -> None:
        self._limits(scheduler, out)
        if self.strict:
            self._reasons(scheduler, out)
            self._importance(scheduler, out, running_before)
            self._truth_of_reasons(scheduler, out)

    def _limits(self, scheduler: Any, out: SchedulerOutput) -> None:
        limits = self.limits
        ids = [row.request_id for row in out.scheduled]
        require(len(set(ids)) == len(ids), f"a request has two rows: {ids}")
        require(all(row.num_tokens > 0 for row in out.scheduled), f"a row computes nothing: {out.scheduled}")
        require(out.num_scheduled_tokens <= limits.max_num_batched_tokens, "the step is over its budget")
        require(len(scheduler.running) <= limits.max_num_seqs, "more requests run than max_num_seqs")
        require(set(ids) <= {r.request_id for r in scheduler.running}, "a row's request does not run")
        for row in out.scheduled:
            known = scheduler.requests[row.request_id].num_tokens
            if limits.long_prefill_token_threshold:
                require(row.num_tokens <= limits.long_prefill_token_threshold, f"chunk too long: {row}")
            if not limits.enable_chunked_prefill:
                require(row.start + row.num_tokens >= known, f"a prompt was cut: {row}")

    def _reasons(self, scheduler: Any, out: SchedulerOutput) -> None:
        scheduled = {row.request_id for row in out.scheduled}
        named = [entry.request_id for entry in out.not_scheduled if entry.request_id is not None]
        shared = [entry for entry in out.not_scheduled if entry.request_id is None]
        idle = set(scheduler.requests) - scheduled
        require(len(set(named)) == len(named), f"a request has two reasons: {out.not_scheduled}")
        require(set(named) <= idle, f"a reason for a request that is scheduled or gone: {out.not_scheduled}")
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
                require(left == 0 or details["need"] > details["left"], f"budget was left: {entry}")
            elif entry.reason is Reason.MAX_NUM_SEQS:
                require(len(scheduler.running) == self.limits.max_num_seqs, f"there was a seat: {entry}")
            elif entry.reason in (Reason.NO_BLOCKS, Reason.LOWER_PRIORITY):
                require(details["need"] > details["free"] >= details["evictable"] >= 0, f"it fits: {entry}")
            elif entry.reason is Reason.PREEMPTING:
                require(bool(out.preempted_request_ids), f"nobody was preempted: {entry}")
            elif entry.reason is Reason.PREFIX_IN_FLIGHT:
                require(self.caching and bool(out.scheduled), f"nothing is in flight: {entry}")

    def _importance(self, scheduler: Any, out: SchedulerOutput, running_before: set[str]) -> None:
        def key(request_id: str) -> tuple[int, float, int]:
            request = scheduler.requests[request_id]
            priority = request.priority if self.limits.policy == "priority" else 0
            return priority, request.arrival_time, self.order[request_id]

        scheduled = [row.request_id for row in out.scheduled]
        admitted = [row.request_id for row in out.scheduled if row.init is not None]
        require(not (admitted and out.preempted_request_ids), "the step admits and preempts")
        in_flight = {e.request_id for e in out.not_scheduled if e.reason is Reason.PREFIX_IN_FLIGHT}
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
            require(request_id is not None, "an owner without a name")
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
        tables = {r.request_id: [b.block_id for b in r.blocks] for r in scheduler.running}
        require(
            {k: v for k, v in self.tables.items() if v} == tables, "events do not add up to the block tables"
        )


# -- the run


@dataclass
class Summary:
    """What a run did, so that tests can tell that the workloads reach the corners they are for."""

    steps: int = 0
    preemptions: int = 0
    hit_tokens: int = 0
    accepted_drafts: int = 0
    rejected_drafts: int = 0
    aborted: int = 0
    evictions: int = 0
    refused: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


@dataclass
class Received:
    """What a client has seen of one request."""

    ask: Ask
    token_ids: list[int] = field(default_factory=list)
    prompt_logprobs: list[int] = field(default_factory=list)
    last: EngineCoreOutput | None = None


SchedulerFactory = Callable[..., Any]


class Simulation:
    """One workload, run against one scheduler."""

    def __init__(
        self, workload: Workload, factory: SchedulerFactory = Scheduler, strict: bool = True
    ) -> None:
        self.workload = workload
        self.replica = EventReplica(workload.cache.num_blocks)
        extra = {"on_event": self.replica.on_event} if strict else {}
        self.scheduler = factory(workload.scheduler, workload.cache, **extra)
        self.strict = strict
        self.worker = ShadowWorker(
            workload.cache.block_size, workload.draft_length, workload.draft_quality, workload.seed
        )
        self.rules = StepRules(workload, strict)
        self.received: dict[str, Received] = {}
        self.summary = Summary()
        self._num_added = 0

    def run(self) -> Summary:
        asks = sorted(self.workload.asks, key=lambda ask: ask.step)
        last_event = max([a.step for a in asks] + [a.step for a in self.workload.aborts], default=0)
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
        try:
            self.scheduler.add(ask.make())
        except RequestRejected:
            require(expected.rejected, f"{ask.request_id} was refused and could have run")
            self.summary.refused += 1
        else:
            require(not expected.rejected, f"{ask.request_id} can never run and was accepted")
            self.received[ask.request_id] = Received(ask)

    def _step(self, step: int) -> None:
        self._abort(step, "before")
        running_before = {request.request_id for request in self.scheduler.running}
        out = self.scheduler.schedule()
        self.rules.check(self.scheduler, out, running_before)
        for row in out.scheduled:
            if row.init is not None:
                received = self.received[row.request_id]
                require(
                    row.init.token_ids == received.ask.prompt + received.token_ids,
                    f"{row.request_id} starts with tokens that are not its own: {row}",
                )
        self._abort(step, "in_flight")
        result = self.worker.execute(out)
        self._inject_errors(step, out, result)
        if self.strict:
            self._check_no_double_work(out)
        for output in self.scheduler.update(out, result):
            self._receive(output)
        self._count(out, result)
        self._abort(step, "after")
        if self.strict:
            self.replica.check(self.scheduler)
        if step % 4 == 0 or not self.scheduler.has_unfinished():
            self.scheduler.check_integrity()

    def _inject_errors(self, step: int, out: SchedulerOutput, result: ModelRunnerOutput) -> None:
        rows = {row.request_id for row in out.scheduled}
        for abort in self.workload.aborts:
            if (abort.step, abort.moment) == (step, "error") and abort.request_id in rows:
                result.errors[abort.request_id] = "a planted error"
                result.sampled_token_ids.pop(abort.request_id, None)

    def _check_no_double_work(self, out: SchedulerOutput) -> None:
        """Nobody starts by computing a block that another row of the same step computes."""
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
                works_on_it = other.start <= last and other.start + other.num_tokens > first * size
                if works_on_it and last < len(digests) and digests[last] == slot.digests[last]:
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
            outputs = self.scheduler.abort([abort.request_id, "nobody", abort.request_id])
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
        require(not final.scheduled and not final.not_scheduled, f"work after the end: {final}")
        self.worker.execute(final)
        require(not self.worker.slots, f"worker slots leaked: {list(self.worker.slots)}")
        self.scheduler.check_integrity()
        if self.strict:
            pool = self.scheduler.kv.pool
            require(pool.num_used == 0 and len(pool.free) == pool.num_usable, "blocks leaked")
            require(self.scheduler.reset_prefix_cache() and not pool.cached, "an idle cache refuses to reset")

    def _check_finished(self, received: Received) -> None:
        ask, last = received.ask, received.last
        if last is None:
            raise ShadowError(f"{ask.request_id} never finished")
        expected = generate_alone(ask, self.workload.scheduler, self.workload.cache)
        if last.finish_reason in ("abort", "error"):
            has_cause = last.error is not None
            require(has_cause == (last.finish_reason == "error"), f"an error without a cause: {last}")
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
    for name in ("aborts", "asks"):
        items = getattr(workload, name)
        for index in range(len(items)):
            rest = items[:index] + items[index + 1 :]
            if name == "aborts" or rest:
                yield _without_orphans(replace(workload, **{name: rest}))
    if workload.draft_length:
        yield replace(workload, draft_length=0)
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
    return f"{type(error).__name__}: {error}\n\nfrom tests.core.shadow_kv import *\n\nrun({small!r})\n"

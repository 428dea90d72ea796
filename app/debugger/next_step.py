"""Predict the next step from the state that a page shows.

Applies the scheduler's rules in short form to counts and block tables. It is not a second scheduler: where
the next step depends on data that no page shows (future tokens, drafts, transfers, a user's policy), there
is no prediction. Questions are asked only if the prediction equals what the run did.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from app.trace_tools.decision_source import OURS
from engine.core.hashing import BlockHasher
from engine.core.request import Request
from engine.core.sched_output import Reason
from engine.sampling_params import SamplingParams
from engine.trace.blocks import NULL_BLOCK
from engine.trace.format import HASH_BYTES
from engine.trace.history import RequestHistory
from engine.trace.protocol import Trace
from engine.trace.records import TraceState
from engine.trace.sentence import evicted_blocks

MAX_TOKENS = SamplingParams().max_tokens
"""Default of a request without max_tokens."""


class Loss(NamedTuple):
    """A preemption and its cause."""

    victim: str
    needy: str
    need: int
    free: int
    blocks: int
    """Blocks that the victim releases."""


@dataclass
class NextStep:
    """The decisions of a step and the state after it, by request id."""

    rows: dict[str, int] = field(default_factory=dict)
    """Tokens to compute, in scheduling order."""
    losses: list[Loss] = field(default_factory=list)
    hits: dict[str, int] = field(default_factory=dict)
    """Admitted or resumed request -> tokens of its prefix hit."""
    taken: dict[str, int] = field(default_factory=dict)
    """Blocks allocated from the free queue."""
    evicted: list[int] = field(default_factory=list)
    """Cached blocks that are allocated, in order."""
    reasons: dict[str, tuple[Reason, dict[str, int]]] = field(default_factory=dict)
    """Why each waiting request keeps waiting."""
    returned: dict[str, int] = field(default_factory=dict)
    """Requests that reach their last token -> blocks that this frees."""
    held: dict[str, int] = field(default_factory=dict)
    """Running requests after the step -> entries of their block tables."""
    arrivals: list[str] = field(default_factory=list)
    """Requests that arrive before the step; known from the run, not from the state."""
    free_before: int = 0
    free_after: int = 0

    @property
    def num_tokens(self) -> int:
        return sum(self.rows.values())


def next_step(reader: Trace, step: int) -> NextStep | None:
    """Predict step + 1 from the state after `step` and the rules; None if they do not determine what the run did."""
    if not 0 <= step < reader.num_steps - 1 or not _is_plain(reader):
        return None
    record = reader.record(step + 1)
    came_between = reader.lifecycle_at("abort", step + 1) or record.get("rekey")
    if came_between or record.get("cnt", {}).get("num_draft_tokens") or _was_reset(record):
        return None
    forecast = _Forecast(reader, step).run()
    return forecast if _agrees(reader, forecast, record, step + 1) else None


def _is_plain(reader: Trace) -> bool:
    """Whether the run used prep's scheduler, and only rules that a page can show."""
    scheduler, cache = _settings(reader)
    unseen = (
        reader.header.get("scheduler_cls", OURS) != OURS,
        not {"max_num_batched_tokens", "max_num_seqs", "max_model_len"} <= scheduler.keys(),
        scheduler.get("max_concurrent_batches", 1) > 1,
        scheduler.get("num_lookahead_tokens", 0) > 0,
        cache.get("sliding_window") is not None,
    )
    return not any(unseen)


def _settings(reader: Trace) -> tuple[dict[str, Any], dict[str, Any]]:
    config = reader.header.get("config", {})
    return config.get("scheduler", {}), config.get("cache", {})


def _was_reset(record: dict[str, Any]) -> bool:
    """Whether the prefix cache was reset: blocks lost their hashes without being allocated."""
    events = record.get("ev", ())
    return sum(len(blocks) for kind, _, blocks, *_ in events if kind == "evict") != len(
        list(evicted_blocks(record))
    )


def _agrees(reader: Trace, forecast: NextStep, record: dict[str, Any], step: int) -> bool:
    """Whether the run did what the forecast says."""
    name = {number: reader.requests[number].request_id for number in record.get("q", ())}
    done = reader.step(step)
    starts = {
        reader.requests[number].request_id: start
        for key in ("new", "res")
        for number, start, *_ in record.get(key, ())
    }
    return (
        [
            (name[number], count)
            for number, count in zip(record.get("q", ()), record.get("n", ()), strict=True)
        ]
        == list(forecast.rows.items())
        and done.preempted == [loss.victim for loss in forecast.losses]
        and starts == forecast.hits
        and {request for request, _ in done.finished} == set(forecast.returned)
        and done.num_free_blocks == forecast.free_after
        and [block for block, _ in evicted_blocks(record)] == forecast.evicted
        and all(_reason_of(reader, record, request) == reason for request, reason in forecast.reasons.items())
    )


def _reason_of(reader: Trace, record: dict[str, Any], name: str) -> tuple[Reason, dict[str, int]] | None:
    rest = None
    for number, reason, figures in record.get("why", ()):
        if number is None:
            rest = Reason(reason), figures
        elif reader.requests[number].request_id == name:
            return Reason(reason), figures
    return rest


class _Forecast:
    """One step by the rules, on a copy of the state."""

    def __init__(self, reader: Trace, step: int) -> None:
        self.reader, self.step = reader, step
        self.state: TraceState = reader.state_at(step)
        self.settings, self.cache = _settings(reader)
        self.block_size = reader.block_size
        self.tables = {name: list(table) for name, table in self.state.block_tables.items()}
        self.refs = list(self.state.blocks.ref)
        self.hashes = list(self.state.blocks.hash)
        self.queue = deque(self.state.blocks.free_queue())
        self.num_tokens = dict(self.state.num_tokens)
        self.budget: int = self.settings["max_num_batched_tokens"]
        self.running = list(self.state.running)
        self.hasher = BlockHasher(
            self.block_size,
            model_fingerprint=reader.header.get("fingerprint") or "",
            kv_cache_dtype=self.cache.get("kv_cache_dtype", "auto"),
        )
        self.in_flight: set[bytes] = set()
        self.plan = NextStep(free_before=len(self.queue))

    def run(self) -> NextStep:
        self._schedule_running()
        self._schedule_waiting()
        self._end_step()
        return self.plan

    # -- running requests

    def _schedule_running(self) -> None:
        index = 0
        while index < len(self.running) and self.budget:
            name = self.running[index]
            start = self.state.num_computed[name]
            count = self._chunk(self.num_tokens[name] - start)
            if not self._make_room(name, start + count):
                break
            self._add_row(name, start, count)
            index += 1

    def _make_room(self, name: str, num_tokens: int) -> bool:
        while (need := self._blocks_for(num_tokens) - len(self.tables[name])) > len(self.queue):
            victim = self.running.pop()
            table = [block for block in self.tables.pop(victim) if block != NULL_BLOCK]
            self.plan.losses.append(Loss(victim, name, need, len(self.queue), len(table)))
            self._release(table)
            if victim == name:
                return False
        self._take(name, max(0, need))
        return True

    def _release(self, table: list[int]) -> int:
        """Release blocks; returns the number that become free."""
        before = len(self.queue)
        for block in reversed(table):
            self.refs[block] -= 1
            if self.refs[block] == 0 and self.hashes[block]:
                self.queue.append(block)
            elif self.refs[block] == 0:
                self.queue.appendleft(block)
        return len(self.queue) - before

    def _take(self, name: str, count: int) -> None:
        for _ in range(count):
            block = self.queue.popleft()
            if self.hashes[block]:
                self.plan.evicted.append(block)
            self.hashes[block] = 0
            self.refs[block] = 1
            self.tables[name].append(block)
            self.plan.taken[name] = self.plan.taken.get(name, 0) + 1

    def _chunk(self, num_tokens: int) -> int:
        longest = self.settings.get("long_prefill_token_threshold") or num_tokens
        return min(num_tokens, self.budget, longest)

    def _add_row(self, name: str, start: int, count: int) -> None:
        self.plan.rows[name] = count
        self.budget -= count
        if self._waiting:
            first = start // self.block_size
            self.in_flight.update(self._chain(name)[first : self._blocks_for(start + count)])

    # -- waiting requests

    @cached_property
    def _waiting(self) -> list[str]:
        """The queue after the previous step and later arrivals, head first."""
        requests = [self._request(name) for name in self.state.waiting]
        for name in self.reader.step(self.step + 1).added:
            request = self._request(name)
            if not request.record.get("late"):
                requests.append(request)
                self.num_tokens[name] = request.num_prompt_tokens
                self.plan.arrivals.append(name)
        return [request.request_id for request in sorted(requests, key=lambda request: request.key)]

    def _schedule_waiting(self) -> None:
        reasons = self.plan.reasons
        passed, blocked = 0, False
        queue = deque(self._waiting)
        while queue:
            closed = self._why_closed(queue[0], passed, blocked)
            if closed is not None:
                reasons.update(dict.fromkeys(queue, closed))
                return
            name = queue.popleft()
            refusal = self._admit(name)
            if refusal is not None:
                reasons[name] = refusal
                blocked = refusal[0] is not Reason.PREFIX_IN_FLIGHT
                passed += 1

    def _why_closed(self, head: str, passed: int, blocked: bool) -> tuple[Reason, dict[str, int]] | None:
        if self.plan.losses:
            return Reason.PREEMPTING, {"preempted": len(self.plan.losses)}
        if self.budget == 0:
            return Reason.BUDGET_EXHAUSTED, {"need": self.num_tokens[head], "left": 0}
        if len(self.running) >= self.settings["max_num_seqs"]:
            return Reason.MAX_NUM_SEQS, {"running": len(self.running)}
        if blocked:
            return Reason.BEHIND_IN_QUEUE, {"passed": passed}
        return None

    def _admit(self, name: str) -> tuple[Reason, dict[str, int]] | None:
        chain = self._chain(name)[: (self.num_tokens[name] - 1) // self.block_size]
        hit = self._hit(name, chain)
        if self._reads_cache(name) and len(hit) < len(chain) and chain[len(hit)] in self.in_flight:
            return Reason.PREFIX_IN_FLIGHT, {"block": len(hit)}
        start = len(hit) * self.block_size
        rest = self.num_tokens[name] - start
        count = self._chunk(rest)
        if count < rest and not self.settings.get("enable_chunked_prefill", True):
            return Reason.BUDGET_EXHAUSTED, {"need": rest, "left": self.budget}
        revived = [block for block in hit if self.refs[block] == 0]
        need = self._blocks_for(self.num_tokens[name]) - len(hit)
        if need > len(self.queue) - len(revived):
            evictable = sum(self.hashes[block] != 0 for block in self.queue) - len(revived)
            free = len(self.queue) - len(revived)
            return Reason.NO_BLOCKS, {"need": need, "free": free, "evictable": evictable}
        for block in revived:
            self.queue.remove(block)
        for block in hit:
            self.refs[block] += 1
        self.tables[name] = list(hit)
        self._take(name, need)
        self.running.append(name)
        self.plan.hits[name] = start
        self._add_row(name, start, count)
        return None

    def _hit(self, name: str, chain: list[bytes]) -> list[int]:
        """The cached blocks of its prefix."""
        if not self._reads_cache(name):
            return []
        found: list[int] = []
        for block_hash in chain:
            block = self._cached.get(block_hash)
            if block is None or self.hashes[block] == 0:
                break
            found.append(block)
        return found[:-1] if self.cache.get("drop_last_hit_block") else found

    @cached_property
    def _cached(self) -> dict[bytes, int]:
        """The prefix index before the step: hash -> block."""
        hex_of = self.state.blocks.hash_hex
        known = [block for block, value in enumerate(self.state.blocks.hash) if value]
        return {bytes.fromhex(hex_of(block) or ""): block for block in known}

    def _chain(self, name: str) -> list[bytes]:
        """The hashes of a request's full blocks, as far as its tokens are known."""
        if not self.cache.get("enable_prefix_caching", True):
            return []
        record = self._request(name)
        tokens = [*record.record["prompt"], *record.tokens[: record.num_outputs_at(self.step)]]
        known = record.record
        request = Request(name, tokens, SamplingParams(), lora_key=known["lora"], cache_salt=known["salt"])
        self.hasher.extend(request)
        return [block_hash[:HASH_BYTES] for block_hash in request.block_hashes]

    def _reads_cache(self, name: str) -> bool:
        params = self._request(name).record["params"]
        skips = params.get("skip_reading_prefix_cache") or params.get("prompt_logprobs") is not None
        return bool(self.cache.get("enable_prefix_caching", True) and not skips)

    # -- after the forward pass

    def _end_step(self) -> None:
        """Add a token to each request that computed its newest one, and end those at their limit."""
        for name, count in self.plan.rows.items():
            start = self.plan.hits[name] if name in self.plan.hits else self.state.num_computed[name]
            if start + count == self.num_tokens[name] and self.num_tokens[name] + 1 >= self.limit(name):
                self.plan.returned[name] = self._release(self.tables.pop(name))
        self.plan.held = {name: len(table) for name, table in self.tables.items()}
        self.plan.free_after = len(self.queue)

    def limit(self, name: str) -> int:
        """Maximum tokens of prompt and output together."""
        return token_limit(self.reader, self._request(name))

    def _request(self, name: str) -> RequestHistory:
        return self.reader.find(name, self.step + 1)

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)


def token_limit(reader: Trace, request: RequestHistory) -> int:
    """Maximum tokens of a request, prompt and output together."""
    longest: int = _settings(reader)[0]["max_model_len"]
    most = request.record["params"].get("max_tokens", MAX_TOKENS)
    return longest if most is None else min(request.num_prompt_tokens + most, longest)

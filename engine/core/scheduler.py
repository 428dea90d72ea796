"""Who computes what in the next step.

Source: vLLM v1/core/sched/scheduler.py. Two rules make ours short: `running` is sorted by importance
and victims come from its tail, so nothing chosen in a step is ever undone; and a request starts only
when blocks for all its known tokens are taken, so a prompt never stops half-way for lack of memory.
"""

from __future__ import annotations

import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from operator import attrgetter
from typing import Literal

from engine.config import CacheConfig, SchedulerConfig
from engine.core.admission_checks import check_can_run, max_num_tokens
from engine.core.apply_result import (
    append_sampled,
    check_sampled,
    last_output,
    new_prompt_logprobs,
    usable_drafts,
)
from engine.core.blocks import OnBlockEvent
from engine.core.connector import KVConnectorOutput, KVConnectorScheduler
from engine.core.encoder_cache import EncoderCacheManager
from engine.core.errors import IntegrityError, RequestRejected, WorkerContractError
from engine.core.integrity import find_problems
from engine.core.kv_manager import KVManager, PrefixHit
from engine.core.kv_transfers import KVTransfers
from engine.core.lora_slots import LoRASlots
from engine.core.queues import POLICIES, HeapQueue, SortKey, WaitQueue
from engine.core.request import Request, RequestStatus
from engine.core.sched_output import (
    EngineCoreOutput,
    ModelRunnerOutput,
    NotScheduled,
    Reason,
    RequestInit,
    Scheduled,
    SchedulerOutput,
)
from engine.core.stats import StepStats

MAX_DEFERRED_PER_STEP = 64
"""How many waiting requests one step may pass over, so that its cost does not depend on the queue."""

PASSED_OVER = (Reason.PREFIX_IN_FLIGHT, Reason.GRAMMAR_COMPILING, Reason.KV_TRANSFER, Reason.NO_LORA_SLOT)
"""Why one waiting request may be overtaken by the next: what it lacks comes by itself, and the next cannot delay it."""

RUNNING = RequestStatus.RUNNING
"""Under a name of its own: in the loop over rows, looking an enum member up costs more than using it.
For the same reason that loop says len(request.token_ids) where others say request.num_tokens."""

_importance: Callable[[Request], SortKey] = attrgetter("sort_key")


@dataclass(slots=True)
class StepPlan:
    """A step while it is being planned."""

    budget_left: int
    rows_left: int
    """How many more requests may compute in this step."""
    rows: list[Scheduled] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    not_scheduled: list[NotScheduled] = field(default_factory=list)
    is_head_blocked: bool = False
    """A waiting request could not start, and those behind it may not overtake."""

    def refuse(self, request_id: str, reason: Reason, details: dict[str, int]) -> None:
        self.not_scheduled.append(NotScheduled(request_id, reason, details))


class Scheduler:
    """Continuous batching over a paged KV cache.

    There is no prefill and no decode. Every request has tokens it knows and tokens whose KV exists,
    and each step lets it catch up, within one token budget:

        token_ids  [ computed ........ | known, not computed .. ] + drafts
                                       ^ start                           num_tokens = what the budget allows

    That one rule gives prefill, chunked prefill, prefix hits (start behind the hit), decode (one
    token), speculation (one token and its drafts) and recomputation after a preemption.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cache_config: CacheConfig,
        *,
        model_fingerprint: str = "",
        clock: Callable[[], float] = time.monotonic,
        on_event: OnBlockEvent | None = None,
        connector: KVConnectorScheduler | None = None,
        kv_load_failure_policy: Literal["recompute", "fail"] = "recompute",
    ) -> None:
        self.config = config
        self.cache_config = cache_config
        self.kv = KVManager(cache_config, model_fingerprint=model_fingerprint, on_event=on_event)
        self.transfers = None if connector is None else KVTransfers(self.kv, connector)
        self.kv_load_failure_policy = kv_load_failure_policy
        self.lora = LoRASlots(config.max_loras) if config.max_loras else None
        self.clock = clock
        self.requests: dict[str, Request] = {}
        """Every request that is not finished: the waiting and the running."""
        self.waiting: WaitQueue = HeapQueue()
        self.running: list[Request] = []
        """Most important first, always sorted."""
        self.encoder_cache = EncoderCacheManager(config.encoder_cache_size or config.max_num_batched_tokens)
        self.stats = StepStats()
        self.compiling: dict[str, Request] = {}
        """Those of the waiting whose grammar is not ready."""
        self._order = count()
        self._step = count()
        self._finished_ids: list[str] = []

    # -- requests come and go

    def add(self, request: Request) -> None:
        """Queue a request, or raise RequestRejected if it could never finish."""
        if request.request_id in self.requests:
            message = "a request with this id is not finished yet; use another id"
            raise RequestRejected(request.request_id, "duplicate_id", message)
        check_can_run(request, self.config, self.cache_config)
        request.max_num_tokens = max_num_tokens(request, self.config.max_model_len)
        request.sort_key = self.sort_key(request, next(self._order))
        self.kv.add(request)
        self.requests[request.request_id] = request
        self.waiting.push(request)
        if request.grammar_future is not None and not _take_grammar(request):
            request.status = RequestStatus.WAITING_GRAMMAR
            self.compiling[request.request_id] = request
        self._record(request, "QUEUED")

    def sort_key(self, request: Request, order: int) -> SortKey:
        """The place of a request among all others, smaller is more important. A policy of one's own overrides it."""
        return POLICIES[self.config.policy](request, order)

    def abort(self, request_ids: Iterable[str]) -> list[EngineCoreOutput]:
        """End requests at any moment, also while their step is in flight.

        Returns the last output of those that lived; ids that are unknown or finished are ignored.
        """
        outputs: list[EngineCoreOutput] = []
        for request_id in request_ids:
            request = self.requests.get(request_id)
            if request is not None:
                self._finish(request, RequestStatus.FINISHED_ABORTED)
                outputs.append(last_output(request, []))
        return outputs

    def has_unfinished(self) -> bool:
        """Whether a step has something to do: requests, or transfers of those that finished."""
        return bool(self.requests) or bool(self.transfers)

    def check_integrity(self) -> None:
        """Raise IntegrityError, naming every violation, unless what must always be true of the core is."""
        problems = find_problems(self)
        if problems:
            raise IntegrityError("the core is inconsistent:\n  " + "\n  ".join(problems))

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. False, with nothing changed, while any request holds blocks."""
        return self.kv.reset_prefix_cache()

    # -- schedule

    def schedule(self) -> SchedulerOutput:
        """Choose what every request computes in this step.

        Running requests go first, most important first. A step that took blocks from somebody admits
        nobody: the newcomer would be the next victim.
        """
        plan = StepPlan(self.config.max_num_batched_tokens, self._max_rows())
        self.stats = StepStats(step=next(self._step))
        self.kv.begin_step()
        if self.config.max_concurrent_batches > 1:
            self._mark_under_way()
        if self.lora is not None:
            self.lora.begin_step()
        self._schedule_running(plan)
        self._schedule_waiting(plan)
        return self._close(plan)

    def _schedule_running(self, plan: StepPlan) -> None:
        index = 0
        while index < len(self.running) and plan.budget_left:
            request = self.running[index]
            if request.in_flight_step >= 0 or not plan.rows_left:
                plan.refuse(request.request_id, Reason.OTHER_BATCH, {"most": self._max_rows()})
                index += 1
                continue
            start = request.num_computed_tokens
            num_tokens = self._num_new_tokens(request, start, plan)
            if request.spec_token_ids and not self.kv.has_room(request, start + num_tokens):
                request.spec_token_ids = []  # nobody loses blocks for a guess
                num_tokens = self._num_new_tokens(request, start, plan)
            new_block_ids = self._make_room(request, start + num_tokens, plan)
            if new_block_ids is None:
                break  # it was the last in line and lost its own blocks
            self._add_row(plan, request, num_tokens, new_block_ids)
            index += 1
        for request in self.running[index:]:
            need = request.num_tokens - request.num_computed_tokens
            details = {"need": need, "left": plan.budget_left}
            plan.refuse(request.request_id, Reason.BUDGET_EXHAUSTED, details)

    def _make_room(self, request: Request, num_tokens: int, plan: StepPlan) -> list[int] | None:
        """Blocks for `num_tokens` tokens of a running request, taken from the least important if need be."""
        while (new_block_ids := self.kv.allocate(request, num_tokens)) is None:
            victim = self.running[-1]
            reason = Reason.NO_BLOCKS if victim is request else Reason.LOWER_PRIORITY
            plan.refuse(victim.request_id, reason, self._lack_of_blocks(request, num_tokens))
            plan.preempted.append(victim.request_id)
            self._preempt(victim)
            if victim is request:
                return None
        return new_block_ids

    def _preempt(self, victim: Request) -> None:
        """Take all blocks of the least important running request; it will recompute what is not kept."""
        self.running.pop()
        self.kv.swap_out(victim)
        self._leave_lora_slot(victim)
        self.kv.free(victim)
        self.encoder_cache.release_all(victim.request_id, victim.mm_features)
        victim.num_computed_tokens = 0
        victim.in_flight_step = -1
        victim.spec_token_ids = []
        victim.status = RequestStatus.PREEMPTED
        victim.num_preemptions += 1
        self.stats.num_preempted += 1
        self.waiting.push(victim)
        self._record(victim, "PREEMPTED")

    def _schedule_waiting(self, plan: StepPlan) -> None:
        """Admit from the head of the queue, in order, until something is used up.

        Only a request that will be ready by itself is passed over: its prefix is on its way, its grammar compiles,
        a slot for its adapter falls idle. One that does not fit is not: if smaller ones overtook it, it could wait
        for ever. Nobody running loses anything to somebody who waits.
        """
        passed: list[Request] = []
        rest: NotScheduled | None = None
        while self.waiting and (rest := self._why_closed(plan, len(passed))) is None:
            request = self.waiting.pop()
            refusal = self._admit(request, plan)
            if refusal is not None:
                plan.not_scheduled.append(refusal)
                plan.is_head_blocked = refusal.reason not in PASSED_OVER
                passed.append(request)
        if rest is not None and len(self.waiting) > len(plan.preempted):  # victims have their own reasons
            plan.not_scheduled.append(rest)
        for request in passed:
            self.waiting.push(request)

    def _why_closed(self, plan: StepPlan, num_passed: int) -> NotScheduled | None:
        """Why nobody else can be admitted in this step: the shared reason of all who still wait."""
        if plan.preempted:
            return NotScheduled(None, Reason.PREEMPTING, {"preempted": len(plan.preempted)})
        if plan.budget_left == 0:
            need = self.waiting.peek().num_tokens
            return NotScheduled(None, Reason.BUDGET_EXHAUSTED, {"need": need, "left": 0})
        if len(self.running) >= self.config.max_num_seqs:
            return NotScheduled(None, Reason.MAX_NUM_SEQS, {"running": len(self.running)})
        if not plan.rows_left:
            return NotScheduled(None, Reason.OTHER_BATCH, {"most": self._max_rows()})
        if plan.is_head_blocked or num_passed >= MAX_DEFERRED_PER_STEP:
            return NotScheduled(None, Reason.BEHIND_IN_QUEUE, {"passed": num_passed})
        return None

    def _admit(self, request: Request, plan: StepPlan) -> NotScheduled | None:
        """Start a waiting request, or say why not. On success it owns blocks for all its known tokens; with a
        sliding window for this step's, since those behind the window come back."""
        if request.status is RequestStatus.WAITING_GRAMMAR:
            self.stats.num_grammar_waits += 1
            return NotScheduled(request.request_id, Reason.GRAMMAR_COMPILING)
        if self.lora is not None and request.lora_key and not self.lora.has_room(request.lora_key):
            self.stats.num_lora_waits += 1
            users = {"slots": self.lora.max_loras, "running": self.lora.num_users.total()}
            return NotScheduled(request.request_id, Reason.NO_LORA_SLOT, users)
        hit = self.kv.match(request)
        if self.kv.is_in_flight(request, hit):
            return NotScheduled(request.request_id, Reason.PREFIX_IN_FLIGHT, {"block": hit.num_blocks})
        if self.transfers is not None:
            refusal = self.transfers.fetch(request, hit, self.stats)
            if refusal is not None:
                return refusal
        start = hit.num_blocks * self.kv.block_size
        num_tokens = self._num_new_tokens(request, start, plan)
        need = request.num_tokens - start
        if num_tokens < need and not self.config.enable_chunked_prefill:
            details = {"need": need, "left": plan.budget_left}
            return NotScheduled(request.request_id, Reason.BUDGET_EXHAUSTED, details)
        reserve = request.num_tokens if self.kv.sliding_window is None else start + num_tokens
        block_ids = self.kv.admit(request, hit, reserve)
        if block_ids is None:
            details = self._lack_of_blocks(request, reserve, hit)
            return NotScheduled(request.request_id, Reason.NO_BLOCKS, details)
        self._start(request, start, hit)
        self._add_row(plan, request, num_tokens, block_ids, _init(request))
        return None

    def _start(self, request: Request, num_hit_tokens: int, hit: PrefixHit) -> None:
        if request.num_cached_tokens < 0:
            request.num_cached_tokens = num_hit_tokens
            if self.kv.reads_cache(request):
                self._count_hit(request, num_hit_tokens, len(hit.host) * self.kv.block_size)
        request.num_computed_tokens = num_hit_tokens
        request.status = RUNNING
        if self.lora is not None and request.lora_key:
            self.lora.acquire(request.lora_key)
        insort(self.running, request, key=_importance)
        self.stats.num_admitted += 1
        self._record(request, "SCHEDULED")

    def _count_hit(self, request: Request, num_tokens: int, num_host_tokens: int) -> None:
        """Where a new request's cached tokens were. What a connector brought lies on the device by now."""
        num_external = min(request.num_external_tokens, num_tokens - num_host_tokens)
        self.stats.prefix_cache_queries += request.num_tokens
        self.stats.prefix_cache_hits += num_tokens - num_external
        self.stats.prefix_cache_host_hits += num_host_tokens
        if num_tokens:
            elsewhere = self.transfers.source if self.transfers is not None else ""
            by_source = {"device": num_tokens - num_host_tokens - num_external, "host": num_host_tokens}
            by_source[elsewhere] = num_external
            request.cached_tokens_by_source = {source: count for source, count in by_source.items() if count}

    def _leave_lora_slot(self, request: Request) -> None:
        """It stops running: its adapter has one user less."""
        if self.lora is not None and request.lora_key:
            self.lora.release(request.lora_key)

    def _num_new_tokens(self, request: Request, start: int, plan: StepPlan) -> int:
        """How far a request can catch up in this step. At least 1 while budget is left."""
        num_tokens = len(request.token_ids) + len(request.spec_token_ids) - start
        if num_tokens == 1:
            return 1  # most rows of most steps: there is nothing to cut
        longest_chunk = self.config.long_prefill_token_threshold or num_tokens
        return min(num_tokens, plan.budget_left, longest_chunk)

    def _add_row(
        self,
        plan: StepPlan,
        request: Request,
        num_tokens: int,
        new_block_ids: list[int],
        init: RequestInit | None = None,
    ) -> None:
        start = request.num_computed_tokens
        num_known = len(request.token_ids) - start
        drafts = request.spec_token_ids
        if drafts:
            drafts = drafts[: max(0, num_tokens - num_known)]
            request.spec_token_ids = []
        row = Scheduled(request.request_id, start, num_tokens, new_block_ids, drafts, init)
        if request.mm_features:
            features, end = request.mm_features, start + num_tokens
            row.encoder_inputs = self.encoder_cache.plan(request.request_id, features, start, end, self.stats)
        plan.rows.append(row)
        plan.budget_left -= num_tokens
        plan.rows_left -= 1
        request.in_flight_step = self.stats.step
        self.kv.mark_in_flight(request, start, start + num_tokens)
        if num_known == 1 and len(request.token_ids) > len(request.prompt_token_ids):
            self.stats.num_decode_tokens += num_tokens
            self.stats.num_draft_tokens += len(drafts)
        else:
            self.stats.num_prefill_tokens += num_tokens

    def _mark_under_way(self) -> None:
        """What other steps compute now, nobody should start to compute a second time."""
        for request in self.running:
            if request.in_flight_step >= 0:
                self.kv.mark_in_flight(request, request.num_computed_tokens, request.num_tokens)

    def _max_rows(self) -> int:
        """Requests in one step: with several under way an equal share for each, else any number."""
        return -(-len(self.requests) // self.config.max_concurrent_batches)

    def _close(self, plan: StepPlan) -> SchedulerOutput:
        stats = self.stats
        stats.num_scheduled_tokens = stats.num_prefill_tokens + stats.num_decode_tokens
        if self.config.num_lookahead_tokens:
            self._look_ahead(plan.rows)
        finished_ids, self._finished_ids = self._finished_ids, []
        copy_out, copy_in = self.kv.close_step(stats)
        if self.lora is not None:
            stats.num_lora_loads = len(self.lora.loads)
            stats.num_lora_evictions = self.lora.num_evictions
        out = SchedulerOutput(
            stats.step,
            plan.rows,
            finished_ids,
            plan.preempted,
            plan.not_scheduled,
            copy_out,
            copy_in,
            dropped_encoder_hashes=self.encoder_cache.take_dropped(),
            lora_loads=self.lora.loads if self.lora is not None else [],
        )
        if self.transfers is not None:
            out.kv_connector_metadata = self.transfers.build_meta()
        return out

    def _look_ahead(self, rows: list[Scheduled]) -> None:
        """Give rows the blocks that a drafter writes to, from what is free when everybody has what he needs."""
        for row in rows:
            request = self.requests[row.request_id]
            end = row.start + row.num_tokens
            if end >= len(request.token_ids):
                end = min(end + self.config.num_lookahead_tokens, request.max_num_tokens)
                row.new_block_ids += self.kv.allocate(request, end) or []

    def _lack_of_blocks(
        self, request: Request, num_tokens: int, hit: PrefixHit | None = None
    ) -> dict[str, int]:
        """The details of a reason that is about memory: what was missing and what there was."""
        num_revived = self.kv.num_revived(hit) if hit is not None else 0
        return {
            "need": self.kv.num_missing(request, num_tokens, hit),
            "free": len(self.kv.pool.free) - num_revived,
            "evictable": self.kv.pool.num_evictable - num_revived,
        }

    # -- update

    def update(self, out: SchedulerOutput, result: ModelRunnerOutput) -> list[EngineCoreOutput]:
        """Take in what the worker computed: new tokens, drafts, finished requests, blocks to publish."""
        outputs: list[EngineCoreOutput] = []
        self.kv.end_step(out.step)
        if self.transfers is not None:
            self.transfers.end_step()
        if self.lora is not None:
            self.lora.confirm_step()
        for row in out.scheduled:
            request = self.requests.get(row.request_id)
            if request is None or request.in_flight_step != out.step:
                continue  # aborted or preempted while its step was in flight
            request.in_flight_step = -1
            output = self._update_request(request, row, result)
            if output is not None:
                outputs.append(output)
        if self.compiling:
            outputs += self._take_grammars()
        if result.kv_connector_output is not None:
            outputs += self._end_transfers(result.kv_connector_output)
        self.stats.num_collectives = result.num_collectives
        self.stats.collective_bytes = result.collective_bytes
        self._close_stats()
        return outputs

    def _take_grammars(self) -> list[EngineCoreOutput]:
        """Requests whose grammar is ready may start; one whose grammar is wrong ends here, alone."""
        outputs = []
        for request in list(self.compiling.values()):
            future = request.grammar_future
            if _take_grammar(request):
                del self.compiling[request.request_id]
                request.status = RequestStatus.WAITING
            elif future is not None and future.done():
                outputs.append(self._fail(request, f"structured_outputs: {future.exception()}"))
        return outputs

    def _end_transfers(self, ended: KVConnectorOutput) -> list[EngineCoreOutput]:
        """Blocks that arrived become prefix hits; a request that misses some computes them, or ends."""
        if self.transfers is None:
            raise WorkerContractError(
                "the worker reports KV transfers, and the scheduler has no KV connector"
            )
        short = self.transfers.update(ended, self.stats)
        if self.kv_load_failure_policy == "recompute":
            return []
        message = "its KV could not be loaded from another engine, and kv_load_failure_policy is 'fail'"
        return [self._fail(request, message) for request in short if not request.status.is_finished]

    def _update_request(
        self, request: Request, row: Scheduled, result: ModelRunnerOutput
    ) -> EngineCoreOutput | None:
        """One row's result. Its KV counts as computed up to the last token that was confirmed."""
        if result.errors and (error := result.errors.get(row.request_id)) is not None:
            return self._fail(request, error)
        sampled = result.sampled_token_ids.get(row.request_id) or []
        check_sampled(request, row, sampled)
        num_rejected = len(row.spec_token_ids) + 1 - len(sampled) if sampled else 0
        if sampled and len(request.token_ids) == len(request.prompt_token_ids):
            self._record(request, "FIRST_TOKEN")
        status, new_token_ids = append_sampled(request, sampled)
        if status is RequestStatus.FINISHED_ERROR:
            token_id = sampled[len(new_token_ids)]
            return self._fail(
                request, f"structured_outputs: token {token_id} was sampled and is not allowed here"
            )
        num_computed = row.start + row.num_tokens - num_rejected
        request.num_computed_tokens = min(num_computed, len(request.token_ids))
        if request.mm_features:
            self.encoder_cache.release_computed(
                request.request_id, request.mm_features, request.num_computed_tokens
            )
        self.kv.publish(request)
        self.stats.num_blocks_behind_window += self.kv.free_behind_window(request)
        prompt_logprobs = new_prompt_logprobs(request, row, result) if result.prompt_logprobs else None
        if status is not RUNNING:
            self._finish(request, status)
            self.stats.num_finished += 1
            output = last_output(request, new_token_ids)
        elif new_token_ids or prompt_logprobs:
            if result.draft_token_ids:
                drafts = result.draft_token_ids.get(request.request_id, [])
                request.spec_token_ids = usable_drafts(request, drafts)
            output = EngineCoreOutput(
                request.request_id,
                new_token_ids,
                num_cached_tokens=request.num_cached_tokens,
                cached_tokens_by_source=request.cached_tokens_by_source,
            )
        else:
            return None
        self.stats.num_generated_tokens += len(new_token_ids)
        if row.spec_token_ids and sampled:
            self.stats.count_drafts(len(sampled) - 1)
        output.prompt_logprobs = prompt_logprobs
        if result.embeddings:
            output.embedding = result.embeddings.get(row.request_id)
        if result.logprobs and (logprobs := result.logprobs.get(row.request_id)):
            output.logprobs = logprobs[: len(new_token_ids)]
        return output

    def _fail(self, request: Request, error: str) -> EngineCoreOutput:
        """End a request that cannot go on. What this step computed of it is not published."""
        self._finish(request, RequestStatus.FINISHED_ERROR)
        self.stats.num_finished += 1
        output = last_output(request, [])
        output.error = error
        return output

    def _finish(self, request: Request, status: RequestStatus) -> None:
        """The one way out of the scheduler, for every request and from every state."""
        if request.status is RUNNING:
            del self.running[bisect_left(self.running, request.sort_key, key=_importance)]
            self._finished_ids.append(request.request_id)
            self._leave_lora_slot(request)
        else:
            self.waiting.remove(request)
            self.compiling.pop(request.request_id, None)
        if self.transfers is not None:
            request.kv_handoff = self.transfers.request_finished(request, status)
        self.kv.forget(request)
        self.encoder_cache.release_all(request.request_id, request.mm_features)
        del self.requests[request.request_id]
        request.status = status
        self._record(request, "FINISHED")

    def _close_stats(self) -> None:
        self.stats.num_running = len(self.running)
        self.stats.num_waiting = len(self.waiting)
        self.kv.describe(self.stats)

    def _record(self, request: Request, event: str) -> None:
        request.events.append((event, self.clock()))


def _init(request: Request) -> RequestInit:
    return RequestInit(
        token_ids=list(request.token_ids),
        num_prompt_tokens=request.num_prompt_tokens,
        sampling_params=request.sampling_params,
        eos_token_ids=request.eos_token_ids,
        seed=request.seed,
        lora_key=request.lora_key,
        mm_features=request.mm_features,
        wants_embedding=request.wants_embedding,
    )


def _take_grammar(request: Request) -> bool:
    """Give a request its place in a grammar that is compiled. False if it is not, or cannot be."""
    future = request.grammar_future
    if future is None or not future.done() or future.exception() is not None:
        return False
    request.grammar, request.grammar_future = future.result().start(), None
    return True

"""Plausible mistakes in the core, and a loader for a core that has one of them.

A mutant is a second copy of the core's modules under another package name: the real ones stay unchanged, and both can
run in one process.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import engine.core
from tests.mutation import Mutation, read_mutations

CORE = Path(engine.core.__path__[0])
COPIED = (
    "hashing",
    "blocks",
    "host_tier",
    "kv_manager",
    "lora_slots",
    "encoder_cache",
    "kv_transfers",
    "resources",
    "admission_checks",
    "queues",
    "passed_over",
    "stopping",
    "row_output",
    "scheduler",
)
"""In import order. Types, errors and stats are shared with the real core."""

ALL_MUTATIONS = read_mutations(r"""
blocks
    shadow_kv
        a_reused_block_stays_in_the_prefix_index in BlockPool._forget
            del self.cached[_] => pass
        a_shared_block_counts_one_owner in BlockPool.touch
            block.ref_count += 1 => block.ref_count = 1
        a_revived_block_stays_in_the_free_queue in BlockPool.touch
            self.free.remove(block) => pass
        anonymous_blocks_leak in BlockPool._enqueue
            self.free.push_front(block) => pass
        a_second_copy_takes_over_the_hash in BlockPool.register
            if block_hash in self.cached: ... => pass
hashing
    shadow_kv
        salt_is_not_part_of_the_root in BlockHasher.root
            encode_fields(..., salt=_) => encode_fields(...)
        salt_and_adapter_share_one_field in BlockHasher.root
            encode_fields(..., lora=_1, salt=_2) => encode_fields(..., x=_1 or _2)
        hashes_are_not_chained in BlockHasher.extend
            parent + content => content
kv_manager
    shadow_kv
        the_window_is_one_too_short in KVManager.free_behind_window
            first_visible = _1 => first_visible = _1 + 1
        a_hit_may_lack_a_block_inside_the_window in KVManager._match_window
            max(1, _) => 1
        blocks_behind_the_window_leak in KVManager.free_behind_window
            self.pool.release(...) => pass
        a_hit_may_cover_the_whole_sequence in KVManager._max_hit
            request.num_tokens - 1 => request.num_tokens
        blocks_are_published_when_planned in KVManager.mark_in_flight
            hashes = _1
            => hashes = _1\nfor pair in zip(request.blocks[first:], hashes): self.pool.register(*pair)
        blocks_are_published_before_their_last_token in KVManager.publish
            num_written = request.num_computed_tokens // self.block_size
            => num_written = min(request.num_computed_tokens // self.block_size + 1, len(request.block_hashes))
        preempted_requests_keep_their_publish_mark in KVManager.free
            request.num_published_blocks = 0 => pass
        revived_blocks_count_as_free in KVManager.has_room_to_start
            _1 - self.num_revived(hit) => _1
        prefixes_stay_in_flight_for_ever in KVManager.begin_step
            self._in_flight.clear() => pass
        no_request_waits_for_a_prefix_in_flight in KVManager.in_flight_for
            return other => return None
        prompt_logprobs_read_the_cache in KVManager.reads_cache
            params.skip_reading_prefix_cache or _ => params.skip_reading_prefix_cache
        claimed_blocks_can_be_taken in KVManager.has_room_to_start
            _1 - self.num_claimed => _1
        a_start_may_take_the_watermark in KVManager.has_room_to_start
            _1 - self.num_kept_free => _1
        a_lone_request_leaves_the_watermark in KVManager.num_kept_free
            return self._num_watermark_blocks if _ else 0 => return self._num_watermark_blocks
        a_victim_swaps_out_what_is_not_computed in KVManager.swap_out
            num_computed = _ => num_computed = min(len(request.blocks), len(request.block_hashes))
        a_swapped_request_finds_its_first_blocks_again in KVManager._match_host
            request.host_blocks[start:most] => request.host_blocks[:most]
        a_host_hit_starts_behind_its_first_block in KVManager._match_host
            start + len(blocks) => start + len(blocks) + 1
        prompt_logprobs_read_the_host in KVManager._match_host
            self.reads_cache(request) => self.enable_prefix_caching
        host_blocks_land_in_the_last_fresh_blocks in KVManager.admit
            fresh[:_1] => fresh[::-1][:_1]
        resumed_requests_keep_their_host_blocks in KVManager.admit
            self._leave_host(request, self.host) => pass
        requests_that_end_while_swapped_keep_their_host_blocks in KVManager.forget
            self._leave_host(request, self.host) => pass
    shadow_transfer
        requests_that_must_not_read_the_cache_fetch in KVManager.hashes_behind
            _1 if self.reads_cache(request) else [] => _1
host_tier
    shadow_kv
        a_block_is_written_to_the_host_twice in HostTier._find
            _1 or self._writing.get(block_hash) => _1
        a_hit_on_the_host_may_be_overwritten_before_it_is_read in HostTier.hold
            for host_block in hit: ...
            => pass
        the_host_learns_a_hash_that_was_not_copied in HostTier._write
            self._plan.copy_out.append(_1) => if len(self._plan.copy_out) < 2: self._plan.copy_out.append(_1)
        copies_go_the_wrong_way in HostTier.close_step
            plan.copy_out, plan.copy_in => plan.copy_in, plan.copy_out
queues
    shadow_kv
        an_aborted_request_stays_queued in HeapQueue.remove
            del self._live[_] => pass
        priorities_are_ignored in priority_key
            (request.priority, ...) => (0, ...)
passed_over
    shadow_kv
        a_prefix_in_flight_claims_no_seat in PassedOver._claim
            self._num_seats += 1 => pass
        a_request_without_a_slot_claims_nothing_from_lesser_ones in PassedOver.face
            while _: ... => pass
        no_request_overtakes_one_that_waits_for_a_slot in PassedOver.add
            reason not in PASSED_OVER => reason not in PASSED_OVER or reason is Reason.NO_LORA_SLOT
        equals_may_take_the_next_steps_budget in PassedOver.forbid
            return self._holds_budget and ... => return False
    shadow_transfer
        no_request_overtakes_one_that_waits_for_kv in PassedOver.add
            reason not in PASSED_OVER => reason not in PASSED_OVER or reason is Reason.KV_TRANSFER
stopping
    shadow_kv
        tokens_after_the_last_are_kept in append_sampled
            return status, sampled[:_] => return status, sampled
        eos_counts_before_min_tokens in _status_after
            num_output_tokens >= params.min_tokens => True
        drafts_are_not_shown_to_the_grammar in usable_drafts
            drafts = request.grammar.validate_tokens(drafts) => pass
row_output
    shadow_kv
        prompt_logprobs_come_twice_after_a_preemption in _new_prompt_logprobs
            computed[_:] => computed
admission_checks
    shadow_kv
        oversized_requests_are_accepted in check_can_run
            need > usable => False
resources
    shadow_kv
        a_request_starts_while_its_grammar_compiles in GrammarWait.why_not
            stats.num_grammar_waits += 1 => return None
        a_grammar_that_does_not_compile_is_waited_for in GrammarWait.end_step
            future is not None and future.done() => False
lora_slots
    shadow_kv
        a_slot_in_use_is_replaced in LoRASlots.has_room
            if self._free or self._idle: ...
            => if self._free or self.slot_of: self._idle.setdefault(next(iter(self.slot_of))); return True
        adapters_in_a_slot_are_not_brought_there in LoRASlots.acquire
            self.loads.append(_) => pass
        adapters_of_a_lost_step_count_as_brought in LoRASlots.begin_step
            for key, _ in (*self.loads, *self.prefetches): ... => pass
scheduler
    shadow_kv
        rejected_drafts_count_as_computed in Scheduler._update_request
            _ if sampled else 0 => 0
        a_victim_keeps_its_progress in Scheduler._preempt
            victim.num_computed_tokens = 0 => pass
        a_victim_keeps_its_drafts in Scheduler._preempt
            victim.spec_token_ids = [] => pass
        the_most_important_is_the_victim in Scheduler._make_room
            self.running[-1] => self.running[0]
        running_is_in_order_of_admission in Scheduler._start
            insort(...) => self.running.append(request)
        a_preempting_step_admits in Scheduler._why_closed
            if plan.preempted: ... => pass
        drafts_cost_no_budget in Scheduler._add_row
            plan.budget_left -= num_tokens => plan.budget_left -= num_tokens - len(drafts)
        a_resumed_request_forgets_its_output in Scheduler._add_row
            RequestInit.of(request)
            => RequestInit(request.prompt_token_ids, start, request.sampling_params, frozenset(), 0)
        one_request_too_many_runs in Scheduler._why_closed
            len(self.running) >= _1 => len(self.running) > _1
        an_aborted_step_is_taken_in in Scheduler.update
            request is None or _ => request is None
        aborted_requests_keep_their_blocks in Scheduler._finish
            self.kv.forget(request) => pass
        the_queue_is_not_explained in Scheduler._schedule_waiting
            plan.not_scheduled.append(rest) => pass
        a_preempted_request_keeps_its_adapters_slot in Scheduler._preempt
            resource.release(victim) => pass
        a_finished_request_keeps_its_adapters_slot in Scheduler._finish
            resource.release(request) => pass
        short_requests_overtake_the_head in Scheduler._why_closed
            plan.passed.is_blocked or _1 => _1
        a_preempted_request_starts_its_grammar_anew in Scheduler._preempt
            victim.num_preemptions += _1
            => victim.num_preemptions += _1\nif victim.grammar: victim.grammar.accepted.clear()
    shadow_transfer
        what_the_worker_reports_is_ignored in Scheduler.update
            outputs += _ => pass
kv_transfers
    shadow_transfer
        blocks_that_did_not_come_are_published in KVTransfers._end_load
            load.blocks[:num_good] => load.blocks
        blocks_are_published_when_they_are_asked_for in KVTransfers._begin_load
            transfer_id = _1
            => transfer_id = _1\nfor pair in zip(blocks, hashes): self._kv.pool.register(*pair)
        loaded_blocks_leak in KVTransfers._end_load
            [*load.hit, *load.blocks] => load.hit
        an_abort_frees_the_blocks_of_its_load in KVTransfers.finish
            block_ids = _1
            => block_ids = _1\n[self._kv.pool.release(x.blocks) for x in self._loads.values() if x.request is request]
        finished_requests_do_not_keep_their_blocks in KVTransfers.finish
            self._kv.pool.touch(block) => pass
        sent_blocks_leak in KVTransfers._end_send
            self._kv.pool.release(blocks) => pass
        unwritten_blocks_are_offered in KVTransfers.finish
            _ if request.status in _COMPLETE else 0 => len(request.block_hashes)
        a_request_fetches_for_ever in KVTransfers.why_not
            request.has_fetched = True => pass
        the_hit_is_not_kept_while_the_rest_is_loaded in KVTransfers._begin_load
            for block in hit: ... => pass
        a_load_covers_the_whole_sequence in KVTransfers.why_not
            wanted = _ => wanted = request.block_hashes[len(hit.device) :]
        an_interrupted_step_loses_transfers in KVTransfers.close_step
            loads, saves = _1 => loads, saves = _1\nself._new_loads, self._new_saves = [], []
""")
MUTATIONS = [mutation for mutation in ALL_MUTATIONS if mutation.caught_by == "shadow_kv"]
TRANSFER_MUTATIONS = [mutation for mutation in ALL_MUTATIONS if mutation.caught_by == "shadow_transfer"]
"""Only `shadow_transfer` can catch these: the engine of the plain oracle has no connector."""


def load_core(mutation: Mutation | None = None) -> Any:
    """The Scheduler class of a copy of the core with one mistake in it (or none)."""
    package = f"mutant_core_{mutation.name if mutation else 'none'}"
    sys.modules[package] = ModuleType(package)
    for name in COPIED:
        source = (CORE / f"{name}.py").read_text()
        if mutation is not None and mutation.module == name:
            source = mutation.apply(source)
        source = re.sub(rf"engine\.core\.({'|'.join(COPIED)})\b", rf"{package}.\1", source)
        module = ModuleType(f"{package}.{name}")
        sys.modules[module.__name__] = module
        exec(compile(source, f"<a copy of {name}.py>", "exec"), module.__dict__)
    return importlib.import_module(f"{package}.scheduler").Scheduler

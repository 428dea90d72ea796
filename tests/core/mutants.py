"""Plausible mistakes in the core, each as a patch to its source, and a loader for the patched core.

A mutant is a second copy of the core's modules under another package name: the real ones stay as
they are, and both can run in one process.
"""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import engine.core

CORE = Path(engine.core.__path__[0])
COPIED = (
    "lora_slots",
    "hashing",
    "blocks",
    "host_tier",
    "kv_manager",
    "kv_transfers",
    "admission_checks",
    "queues",
    "apply_result",
    "scheduler",
)
"""In import order. Types, errors and stats are shared with the real core."""


@dataclass(frozen=True)
class Mutation:
    name: str
    """What the mutant does, as a claim about it."""
    module: str
    old: str
    new: str


MUTATIONS = [
    # blocks
    Mutation(
        "a_reused_block_stays_in_the_prefix_index",
        "blocks",
        "        del self.cached[block.block_hash]\n",
        "",
    ),
    Mutation(
        "a_shared_block_counts_one_owner",
        "blocks",
        "        block.ref_count += 1\n",
        "        block.ref_count = 1\n",
    ),
    Mutation(
        "a_revived_block_stays_in_the_free_queue",
        "blocks",
        "            self.free.remove(block)\n            self.num_evictable -= 1\n",
        "            self.num_evictable -= 1\n",
    ),
    Mutation(
        "anonymous_blocks_leak", "blocks", "            self.free.push_front(block)\n", "            pass\n"
    ),
    Mutation(
        "a_second_copy_takes_over_the_hash",
        "blocks",
        "        if block_hash in self.cached:\n            return False\n",
        "",
    ),
    # hashing
    Mutation("salt_is_not_part_of_the_root", "hashing", ", salt=cache_salt", ""),
    Mutation(
        "salt_and_adapter_share_one_field",
        "hashing",
        "lora=lora_key, salt=cache_salt",
        "x=lora_key or cache_salt",
    ),
    Mutation("hashes_are_not_chained", "hashing", "self._hash(parent + content)", "self._hash(content)"),
    # kv manager
    Mutation(
        "the_window_is_one_too_short",
        "kv_manager",
        "request.num_computed_tokens - self.sliding_window + 1",
        "request.num_computed_tokens - self.sliding_window + 2",
    ),
    Mutation(
        "a_hit_may_lack_a_block_inside_the_window",
        "kv_manager",
        "num_needed = max(1, self.num_blocks_for(window - 1))",
        "num_needed = 1",
    ),
    Mutation(
        "blocks_behind_the_window_leak",
        "kv_manager",
        "        self.pool.release(request.blocks[start:end], request.request_id)\n",
        "",
    ),
    Mutation(
        "a_hit_may_cover_the_whole_sequence",
        "kv_manager",
        "(request.num_tokens - 1) //",
        "request.num_tokens //",
    ),
    Mutation(
        "blocks_are_published_when_planned",
        "kv_manager",
        "        first = start // self.block_size\n",
        "        first = start // self.block_size\n"
        "        for index in range(request.num_published_blocks, min(end // self.block_size,"
        " len(request.block_hashes))):\n"
        "            self.pool.register(request.blocks[index], request.block_hashes[index])\n",
    ),
    Mutation(
        "blocks_are_published_before_their_last_token",
        "kv_manager",
        "num_written = request.num_computed_tokens // self.block_size",
        "num_written = min(-(-request.num_computed_tokens // self.block_size), len(request.block_hashes))",
    ),
    Mutation(
        "freed_requests_keep_their_publish_mark",
        "kv_manager",
        "        request.num_published_blocks = 0\n",
        "",
    ),
    Mutation(
        "revived_blocks_are_counted_as_free",
        "kv_manager",
        "<= len(self.pool.free) - self.num_revived(hit)",
        "<= len(self.pool.free)",
    ),
    Mutation(
        "prefixes_stay_in_flight_for_ever",
        "kv_manager",
        "        self._in_flight.clear()\n",
        "        pass\n",
    ),
    Mutation(
        "nobody_waits_for_a_prefix_in_flight",
        "kv_manager",
        "return any(index < most",
        "return False and any(index < most",
    ),
    Mutation("prompt_logprobs_read_the_cache", "kv_manager", " or params.prompt_logprobs is not None", ""),
    # tiers
    Mutation(
        "a_victim_swaps_out_what_is_not_computed",
        "kv_manager",
        "num_computed = request.num_computed_tokens // self.block_size",
        "num_computed = min(len(request.blocks), len(request.block_hashes))",
    ),
    Mutation(
        "a_swapped_request_finds_its_first_blocks_again",
        "kv_manager",
        "host_blocks[start:most]",
        "host_blocks[:most]",
    ),
    Mutation(
        "a_host_hit_starts_behind_its_first_block",
        "kv_manager",
        "request.block_hashes[start + len(found) : most]",
        "request.block_hashes[start + len(found) + 1 : most]",
    ),
    Mutation(
        "prompt_logprobs_read_the_host",
        "kv_manager",
        "        if self.reads_cache(request):\n            for block_hash in request.block_hashes[start",
        "        if self.enable_prefix_caching:\n            for block_hash in request.block_hashes[start",
    ),
    Mutation(
        "host_blocks_land_in_the_last_fresh_blocks",
        "kv_manager",
        "fresh[: len(hit.host)]",
        "fresh[::-1][: len(hit.host)]",
    ),
    Mutation(
        "whoever_resumes_keeps_its_host_blocks",
        "kv_manager",
        "            self._leave_host(request, self.host)\n        request.blocks",
        "        request.blocks",
    ),
    Mutation(
        "whoever_ends_while_swapped_keeps_its_host_blocks",
        "kv_manager",
        "            self._leave_host(request, self.host)\n\n",
        "            pass\n\n",
    ),
    Mutation(
        "a_block_is_written_to_the_host_twice",
        "host_tier",
        "self.pool.cached.get(block_hash) or self._writing.get(block_hash)",
        "self.pool.cached.get(block_hash)",
    ),
    Mutation(
        "a_hit_on_the_host_may_be_overwritten_before_it_is_read",
        "host_tier",
        "        for host_block in hit:\n            self.pool.touch(host_block)\n        self._plan.read += hit\n",
        "",
    ),
    Mutation(
        "the_host_learns_a_hash_that_was_not_copied",
        "host_tier",
        "        self._plan.copy_out.append((block.block_id, host_block.block_id))\n",
        "        if len(self._plan.copy_out) < 2:\n"
        "            self._plan.copy_out.append((block.block_id, host_block.block_id))\n",
    ),
    Mutation(
        "copies_go_the_wrong_way",
        "host_tier",
        "return plan.copy_out, plan.copy_in",
        "return plan.copy_in, plan.copy_out",
    ),
    # queues
    Mutation(
        "an_aborted_request_stays_queued",
        "queues",
        "        del self._live[request.sort_key]\n        if",
        "        if",
    ),
    Mutation("priorities_are_ignored", "queues", "return (request.priority,", "return (0,"),
    # scheduler
    Mutation(
        "rejected_drafts_count_as_computed",
        "scheduler",
        "len(row.spec_token_ids) + 1 - len(sampled) if sampled else 0",
        "0",
    ),
    Mutation("a_victim_keeps_its_progress", "scheduler", "        victim.num_computed_tokens = 0\n", ""),
    Mutation("a_victim_keeps_its_drafts", "scheduler", "        victim.spec_token_ids = []\n", ""),
    Mutation(
        "the_most_important_is_the_victim",
        "scheduler",
        "victim = self.running[-1]",
        "victim = self.running[0]",
    ),
    Mutation(
        "running_is_in_order_of_admission",
        "scheduler",
        "insort(self.running, request, key=_importance)",
        "self.running.append(request)",
    ),
    Mutation("a_preempting_step_admits", "scheduler", "        if plan.preempted:\n", "        if False:\n"),
    Mutation(
        "drafts_cost_no_budget",
        "scheduler",
        "plan.budget_left -= num_tokens",
        "plan.budget_left -= num_tokens - len(drafts)",
    ),
    Mutation(
        "one_request_too_many_runs",
        "scheduler",
        "len(self.running) >= self.config.max_num_seqs",
        "len(self.running) > self.config.max_num_seqs",
    ),
    Mutation(
        "an_aborted_step_is_taken_in",
        "scheduler",
        "request is None or request.in_flight_step != out.step",
        "request is None",
    ),
    Mutation(
        "aborted_requests_keep_their_blocks",
        "scheduler",
        "        self.kv.forget(request)\n",
        "",
    ),
    Mutation(
        "tokens_after_the_last_are_kept",
        "apply_result",
        "return status, sampled[: index + 1]",
        "return status, sampled",
    ),
    Mutation(
        "eos_counts_before_min_tokens", "apply_result", "num_output_tokens >= params.min_tokens", "True"
    ),
    Mutation(
        "a_resumed_request_forgets_its_output",
        "scheduler",
        "token_ids=list(request.token_ids)",
        "token_ids=list(request.prompt_token_ids)",
    ),
    Mutation(
        "prompt_logprobs_come_twice_after_a_preemption",
        "apply_result",
        "computed[max(0, request.num_prompt_logprobs - row.start) :]",
        "computed",
    ),
    Mutation(
        "the_queue_is_not_explained",
        "scheduler",
        "            plan.not_scheduled.append(rest)\n",
        "            pass\n",
    ),
    # adapter slots
    Mutation(
        "a_slot_in_use_is_replaced",
        "lora_slots",
        "        if self._free or self._idle:\n            return True\n",
        "        if self._free or self.slot_of:\n            self._idle.setdefault(next(iter(self.slot_of)))\n"
        "            return True\n",
    ),
    Mutation(
        "a_preempted_request_keeps_its_adapters_slot",
        "scheduler",
        "        self._leave_lora_slot(victim)\n",
        "",
    ),
    Mutation(
        "a_finished_request_keeps_its_adapters_slot",
        "scheduler",
        "            self._leave_lora_slot(request)\n",
        "",
    ),
    Mutation(
        "adapters_in_a_slot_are_not_brought_there",
        "lora_slots",
        "            self.loads.append((key, slot))\n",
        "",
    ),
    Mutation(
        "adapters_of_a_lost_step_count_as_brought",
        "lora_slots",
        "        for key, _ in self.loads:\n            self.forget(key)\n",
        "",
    ),
    Mutation(
        "nobody_overtakes_who_waits_for_a_slot",
        "scheduler",
        ", Reason.NO_LORA_SLOT)",
        ")",
    ),
    Mutation(
        "oversized_requests_are_accepted", "admission_checks", "    if need > usable:\n", "    if False:\n"
    ),
    Mutation(
        "short_requests_overtake_the_head",
        "scheduler",
        "if plan.is_head_blocked or num_passed",
        "if num_passed",
    ),
    # grammars
    Mutation(
        "a_request_starts_while_its_grammar_compiles",
        "scheduler",
        "        if request.status is RequestStatus.WAITING_GRAMMAR:\n",
        "        if False:\n",
    ),
    Mutation(
        "drafts_are_not_shown_to_the_grammar",
        "apply_result",
        "        drafts = request.grammar.validate_tokens(drafts)\n",
        "        pass\n",
    ),
    Mutation(
        "a_preempted_request_starts_its_grammar_anew",
        "scheduler",
        "        victim.num_preemptions += 1\n",
        "        victim.num_preemptions += 1\n        victim.grammar and victim.grammar.accepted.clear()\n",
    ),
    Mutation(
        "a_grammar_that_does_not_compile_is_waited_for",
        "scheduler",
        "            elif future is not None and future.done():\n",
        "            elif False:\n",
    ),
]

TRANSFER_MUTATIONS = [
    Mutation(
        "blocks_that_did_not_come_are_published",
        "kv_transfers",
        "zip(load.blocks[:num_good], load.block_hashes, strict=False)",
        "zip(load.blocks, load.block_hashes, strict=True)",
    ),
    Mutation(
        "blocks_are_published_when_they_are_asked_for",
        "kv_transfers",
        "        transfer_id = next(self._ids)\n        self._loads[transfer_id]",
        "        for block, block_hash in zip(blocks, hashes):\n"
        "            self._kv.pool.register(block, block_hash)\n"
        "        transfer_id = next(self._ids)\n        self._loads[transfer_id]",
    ),
    Mutation(
        "loaded_blocks_leak",
        "kv_transfers",
        "pool.release([*load.hit, *load.blocks])",
        "pool.release(load.hit)",
    ),
    Mutation(
        "an_abort_frees_the_blocks_of_its_load",
        "kv_transfers",
        "        num_blocks = request.num_published_blocks if",
        "        for load in self._loads.values():\n"
        "            if load.request is request:\n"
        "                self._kv.pool.release(load.blocks)\n"
        "                load.blocks = []\n"
        "        num_blocks = request.num_published_blocks if",
    ),
    Mutation(
        "finished_requests_do_not_keep_their_blocks",
        "kv_transfers",
        "                self._kv.pool.touch(block)\n            transfer_id",
        "                pass\n            transfer_id",
    ),
    Mutation(
        "sent_blocks_leak",
        "kv_transfers",
        "        self._kv.pool.release(blocks)\n",
        "        pass\n",
    ),
    Mutation(
        "unwritten_blocks_are_offered",
        "kv_transfers",
        "request.num_published_blocks if status in _COMPLETE else 0",
        "len(request.block_hashes)",
    ),
    Mutation(
        "a_request_fetches_for_ever",
        "kv_transfers",
        "        request.has_fetched = True\n",
        "",
    ),
    Mutation(
        "the_hit_is_not_kept_while_the_rest_is_loaded",
        "kv_transfers",
        "        for block in hit:\n            self._kv.pool.touch(block)\n",
        "",
    ),
    Mutation(
        "a_load_covers_the_whole_sequence",
        "kv_transfers",
        "        wanted = self._kv.hashes_behind(request, len(hit.device))\n",
        "        wanted = request.block_hashes[len(hit.device) :]\n",
    ),
    Mutation(
        "requests_that_must_not_read_the_cache_fetch",
        "kv_manager",
        " if self.reads_cache(request) else []\n",
        "\n",
    ),
    Mutation(
        "nobody_overtakes_a_request_that_waits_for_kv",
        "scheduler",
        "Reason.KV_TRANSFER, Reason.NO_LORA_SLOT)",
        "Reason.NO_LORA_SLOT)",
    ),
    Mutation(
        "an_interrupted_step_loses_transfers",
        "kv_transfers",
        "        return self._connector.build_connector_meta(list(self._new_loads), list(self._new_saves))\n",
        "        meta = self._connector.build_connector_meta(self._new_loads, self._new_saves)\n"
        "        self._new_loads, self._new_saves = [], []\n"
        "        return meta\n",
    ),
    Mutation(
        "what_the_worker_reports_is_ignored",
        "scheduler",
        "            outputs += self._end_transfers(result.kv_connector_output)\n",
        "            pass\n",
    ),
]
"""Caught by `shadow_transfer`: the engine of the plain oracle has no connector."""


def load_core(mutation: Mutation | None = None) -> Any:
    """The Scheduler class of a copy of the core with one mistake in it (or none)."""
    package = f"mutant_core_{mutation.name if mutation else 'none'}"
    sys.modules[package] = ModuleType(package)
    for name in COPIED:
        source = (CORE / f"{name}.py").read_text()
        if mutation is not None and mutation.module == name:
            if source.count(mutation.old) != 1:
                raise ValueError(
                    f"{mutation.name}: its text occurs {source.count(mutation.old)} times in {name}.py"
                )
            source = source.replace(mutation.old, mutation.new)
        source = re.sub(rf"engine\.core\.({'|'.join(COPIED)})\b", rf"{package}.\1", source)
        module = ModuleType(f"{package}.{name}")
        sys.modules[module.__name__] = module
        exec(
            compile(source, f"<{mutation.name if mutation else 'copy'} of {name}.py>", "exec"),
            module.__dict__,
        )
    return importlib.import_module(f"{package}.scheduler").Scheduler

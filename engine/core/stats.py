"""Figures of one step, for logs, metrics and traces."""

from __future__ import annotations

from dataclasses import dataclass, field, fields


@dataclass(slots=True)
class StepStats:
    """Flows count one step: sum them for totals. Levels describe the state after `Scheduler.update`."""

    step: int = -1
    """0-based; -1 before the first step."""

    # Flows
    num_scheduled_tokens: int = 0
    num_prefill_tokens: int = 0
    """Tokens of rows that compute more than their newest token: prompts and recomputation."""
    num_decode_tokens: int = 0
    """Tokens of the other rows: the newest token and its drafts."""
    num_generated_tokens: int = 0
    num_drafts: int = 0
    """Rows whose drafts were verified."""
    num_draft_tokens: int = 0
    """Drafts that the model verified."""
    num_accepted_tokens: int = 0
    """Drafts accepted by the model."""
    num_accepted_tokens_per_pos: list[int] = field(default_factory=list)
    """Counts of accepted first drafts of a row, second drafts, ...; without trailing zeros."""
    num_admitted: int = 0
    num_preempted: int = 0
    num_finished: int = 0
    """Requests that ended in this step's update. Aborts are not counted."""
    prefix_cache_queries: int = 0
    """Tokens of requests that looked for a prefix at their first admission."""
    prefix_cache_hits: int = 0
    """Tokens of these requests found in the cache."""
    encoder_cache_queries: int = 0
    """Images that rows read."""
    encoder_cache_hits: int = 0
    """Images among them that were already encoded."""
    num_blocks_behind_window: int = 0
    """Blocks that running requests freed because no later token sees them."""
    external_prefix_cache_queries: int = 0
    """Uncached tokens of requests whose KV connector looked elsewhere."""
    external_prefix_cache_hits: int = 0
    """Tokens whose KV arrived from elsewhere. They do not count as hits of this engine's own cache."""
    num_kv_waits: int = 0
    """Requests passed over because their KV is on its way."""
    num_kv_save_failures: int = 0
    """Finished requests that lost blocks while saving."""
    num_kv_load_failures: int = 0
    """Loads with missing blocks."""
    kv_bytes_received: int = 0
    """Verified KV from elsewhere."""
    kv_bytes_sent: int = 0
    num_collectives: int = 0
    collective_bytes: int = 0
    """Bytes that the sampling rank contributed to its collectives (tensor, pipeline parallel)."""
    num_idle_stages: int = 0
    """Pipeline stages without a step while the engine waited for this one: the bubble."""
    prefix_cache_host_hits: int = 0
    """Hit tokens whose KV was in host memory."""
    num_blocks_swapped_out: int = 0
    """Blocks of preempted requests copied to the host."""
    num_blocks_offloaded: int = 0
    """Evicted blocks copied to the host."""
    num_blocks_copied_in: int = 0
    """Host blocks copied to the device: swapped in, or hit."""
    host_bytes_out: int = 0
    host_bytes_in: int = 0
    num_evictions: int = 0
    """Cached blocks reassigned to other tokens."""
    num_grammar_waits: int = 0
    """Requests passed over because their grammar compiles."""
    num_masked_rows: int = 0
    """Sampled positions with a grammar mask, drafts included."""
    grammar_compile_us: int = 0
    """Microseconds of compilation since the last step, in its own thread."""
    num_lora_loads: int = 0
    """Adapters loaded to the device."""
    num_lora_evictions: int = 0
    """Adapters replaced on the device."""
    num_lora_waits: int = 0
    """Requests passed over for lack of an adapter slot."""
    num_lora_reads: int = 0
    """Adapters that the step read from their folder before it computed: they were not in host memory."""
    num_lora_prefetches: int = 0
    """Adapters of waiting requests that workers began to fetch after the step (`lora_prefetch`)."""

    # Levels
    num_running: int = 0
    num_waiting: int = 0
    num_free_blocks: int = 0
    """Free blocks, with or without cached content."""
    num_evictable_blocks: int = 0
    """Free blocks with cached content."""
    num_saved_blocks: int = 0
    """Blocks saved by sharing (n > 1, common prefixes)."""
    kv_cache_usage: float = 0.0
    """Share of the blocks owned by running requests, 0 to 1."""

    def count_drafts(self, num_accepted: int) -> None:
        """Count a row whose first `num_accepted` drafts were accepted."""
        self.num_drafts += 1
        self.num_accepted_tokens += num_accepted
        per_pos = self.num_accepted_tokens_per_pos
        per_pos.extend([0] * (num_accepted - len(per_pos)))
        for position in range(num_accepted):
            per_pos[position] += 1


_NAMES = [field.name for field in fields(StepStats)]
_DERIVED = {
    "num_scheduled_tokens", "num_prefill_tokens", "num_decode_tokens", "num_generated_tokens",
    "num_admitted", "num_preempted", "num_finished", "prefix_cache_queries", "prefix_cache_hits",
    "num_accepted_tokens_per_pos", "num_idle_stages",
}  # fmt: skip
TRACED_COUNTERS = tuple(
    name for name in _NAMES[_NAMES.index("step") + 1 : _NAMES.index("num_running")] if name not in _DERIVED
)
"""Flows that a trace records for every step in which they are not zero: a reader cannot derive them."""

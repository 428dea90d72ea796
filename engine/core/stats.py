"""The figures of one step, for logs, metrics and traces."""

from __future__ import annotations

from dataclasses import dataclass, field

TRACED_COUNTERS = (
    "num_drafts",
    "num_draft_tokens",
    "num_accepted_tokens",
    "num_evictions",
    "num_blocks_swapped_out",
    "num_blocks_offloaded",
    "num_blocks_copied_in",
    "host_bytes_out",
    "host_bytes_in",
    "prefix_cache_host_hits",
    "num_collectives",
    "collective_bytes",
    "encoder_cache_queries",
    "encoder_cache_hits",
    "num_grammar_waits",
    "num_masked_rows",
    "grammar_compile_us",
    "num_blocks_behind_window",
    "external_prefix_cache_queries",
    "external_prefix_cache_hits",
    "num_kv_waits",
    "num_kv_save_failures",
    "num_kv_load_failures",
    "kv_bytes_received",
    "kv_bytes_sent",
    "num_lora_loads",
    "num_lora_evictions",
    "num_lora_waits",
)
"""Flows that a trace keeps for every step in which they are not zero: it cannot work them out itself."""


@dataclass(slots=True)
class StepStats:
    """What one step did, and how things stood when it ended.

    Flows count this step only: sum them over steps for totals. Levels describe the state after
    `Scheduler.update`.
    """

    step: int = -1
    """0-based; -1 before the first step."""

    # Flows
    num_scheduled_tokens: int = 0
    num_prefill_tokens: int = 0
    """Tokens of rows that catch up with more than their newest token: prompts and recomputation."""
    num_decode_tokens: int = 0
    """Tokens of the other rows: the newest token and its drafts."""
    num_generated_tokens: int = 0
    num_drafts: int = 0
    """Rows whose drafts the model has judged."""
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    """Drafts that the model confirmed."""
    num_accepted_tokens_per_pos: list[int] = field(default_factory=list)
    """How often the first draft of a row was confirmed, how often the second, ...; short of those that never were."""
    num_admitted: int = 0
    num_preempted: int = 0
    num_finished: int = 0
    """Requests that ended in this step's update. Aborts are not counted."""
    prefix_cache_queries: int = 0
    """Tokens of the requests admitted for the first time that looked for a prefix."""
    prefix_cache_hits: int = 0
    """Those of them found in the cache."""
    encoder_cache_queries: int = 0
    """Images that rows of the step read."""
    encoder_cache_hits: int = 0
    """Those of them that were encoded before."""
    num_blocks_behind_window: int = 0
    """Blocks given back by running requests because no later token sees them."""
    external_prefix_cache_queries: int = 0
    """Tokens not cached here of requests that looked for their KV elsewhere, before they started."""
    external_prefix_cache_hits: int = 0
    """Those of them whose KV arrived. They are not counted as hits of this engine's own cache."""
    num_kv_waits: int = 0
    """Requests that waited in this step for KV from elsewhere."""
    num_kv_save_failures: int = 0
    """Finished requests whose blocks could not all be saved."""
    num_kv_load_failures: int = 0
    """Loads that did not bring every block they were to bring."""
    kv_bytes_received: int = 0
    """KV that arrived from elsewhere and was verified."""
    kv_bytes_sent: int = 0
    num_collectives: int = 0
    collective_bytes: int = 0
    """What the rank that samples said to other ranks (tensor, pipeline parallel), and how many bytes of tensors."""
    num_idle_stages: int = 0
    """Pipeline stages that had no step while this one was waited for: the bubble."""
    prefix_cache_host_hits: int = 0
    """Of the hits, tokens that were in host memory."""
    num_blocks_swapped_out: int = 0
    """Blocks of preempted requests that are copied to the host."""
    num_blocks_offloaded: int = 0
    """Evicted blocks that are copied to the host."""
    num_blocks_copied_in: int = 0
    """Blocks that come back: swapped in, or hit on the host."""
    host_bytes_out: int = 0
    host_bytes_in: int = 0
    num_evictions: int = 0
    """Cached blocks reused for something else."""
    num_grammar_waits: int = 0
    """Requests that this step passed over because their grammar was not compiled yet."""
    num_masked_rows: int = 0
    """Positions whose tokens a grammar chose from; drafts count one each."""
    grammar_compile_us: int = 0
    """Microseconds spent on the grammars that became ready since the last step, in their own thread."""
    num_lora_loads: int = 0
    """Adapters brought to the device."""
    num_lora_evictions: int = 0
    """Adapters that lost their slot on the device to another one."""
    num_lora_waits: int = 0
    """Requests that could not start because there was no slot for their adapter."""

    # Levels
    num_running: int = 0
    num_waiting: int = 0
    num_free_blocks: int = 0
    """Blocks that can be taken, cached content included."""
    num_evictable_blocks: int = 0
    """Of the free blocks, those that still hold cached content."""
    num_saved_blocks: int = 0
    """Blocks that running requests would need more if none were shared (n > 1, common prefixes)."""
    kv_cache_usage: float = 0.0
    """Share of the blocks owned by running requests, 0 to 1."""

    def count_drafts(self, num_accepted: int) -> None:
        """A row's drafts were judged: the first `num_accepted` of them were right."""
        self.num_drafts += 1
        self.num_accepted_tokens += num_accepted
        per_pos = self.num_accepted_tokens_per_pos
        per_pos.extend([0] * (num_accepted - len(per_pos)))
        for position in range(num_accepted):
            per_pos[position] += 1

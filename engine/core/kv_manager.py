"""The scheduler's view of KV memory: block tables, prefix hits, and when a block becomes visible.

    token_ids   t t t t | t t t t | t t t t | t t      block_size = 4, 14 tokens known
    blocks        b7    |   b2    |   b9    |  b4      the block table
                |<---- published -->|                  num_published_blocks = 2: others may hit b7 and b2
                |<----- computed ------->|             num_computed_tokens = 10: their KV is written

With a sliding window, blocks that no later token sees are freed, and the null block stands in their place:

    blocks       null   |  null   |   b9    |  b4      num_blocks_behind_window = 2
                                                       with a window of 5, token 14 sees 10..14

Only `publish` makes a block visible, after the step that wrote its last token: no request can read KV that was planned
and not computed. Source: vLLM v1/core/kv_cache_manager.py, which registers hashes while it schedules (see its PR
#43569).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.config import CacheConfig
from engine.core.blocks import Block, BlockPool, OnBlockEvent
from engine.core.hashing import BlockHasher
from engine.core.host_tier import CopyPairs, HostTier
from engine.core.request import Request
from engine.core.stats import StepStats


@dataclass(slots=True)
class PrefixHit:
    """Cached blocks that a request can start with, in the order of its tokens:

    | device: shared | host: copied in | computed
    """

    device: list[Block] = field(default_factory=list)
    """Blocks of the device's prefix cache."""
    host: list[Block] = field(default_factory=list)
    """Host blocks that follow them, each copied into a fresh device block."""

    @property
    def num_blocks(self) -> int:
        return len(self.device) + len(self.host)


def max_blocks_held(num_tokens: int, chunk: int, block_size: int, sliding_window: int | None) -> int:
    """Upper bound on the blocks that a request of `num_tokens` tokens holds at once, with `chunk` tokens per step."""
    everything = -(-num_tokens // block_size)
    if sliding_window is None:
        return everything
    num_visible = sliding_window - 1 + chunk
    return min(everything, -(-(num_visible - 1) // block_size) + 1)


class KVManager:
    """Allocates blocks to requests and finds prefixes that are already computed."""

    def __init__(
        self, config: CacheConfig, *, model_fingerprint: str = "", on_event: OnBlockEvent | None = None
    ) -> None:
        self.block_size = config.block_size
        self.enable_prefix_caching = config.enable_prefix_caching
        self.drop_last_hit_block = config.drop_last_hit_block
        self.pool = BlockPool(config.num_blocks, on_event)
        self.hasher = BlockHasher(
            config.block_size,
            model_fingerprint=model_fingerprint,
            kv_cache_dtype=config.kv_cache_dtype,
            detect_collisions=config.detect_hash_collisions,
        )
        self.sliding_window = config.sliding_window
        self.host = HostTier(config.tiers.num_host_blocks) if config.tiers.num_host_blocks else None
        self._swap = config.tiers.swap
        self._block_bytes = config.tiers.block_bytes
        self._num_watermark_blocks = int(config.watermark * config.num_blocks)
        if self.host is not None and config.tiers.offload:
            self.pool.before_eviction = self.host.offload
        self.num_evictions_before = 0
        """Evictions until the end of the previous step."""
        self.num_claimed = 0
        """Free blocks that the next request to start leaves for passed-over ones: see `engine/core/passed_over.py`."""
        self._in_flight: dict[bytes, Request] = {}
        """Hash of each block that a row of this step computes or copies in -> the request of the row."""

    @property
    def usage(self) -> float:
        """Share of the blocks that running requests own, 0 to 1."""
        return self.pool.num_used / self.pool.num_usable

    @property
    def num_kept_free(self) -> int:
        """Free blocks that a request leaves when it starts beside others, so that these can grow: the watermark.

        Source: vLLM v1/core/kv_cache_manager.py, allocate_slots.
        """
        return self._num_watermark_blocks if self.pool.num_used else 0

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    # -- finding prefixes

    def add(self, request: Request) -> None:
        """Hash the prompt's full blocks."""
        if self.enable_prefix_caching:
            self.hasher.extend(request)

    def match(self, request: Request) -> PrefixHit:
        """Find the longest prefix of the request whose KV exists. Reserves nothing.

        A hit never covers the whole sequence: one token must be computed to have logits to sample from.
        """
        hit = PrefixHit()
        if self.reads_cache(request) and self.sliding_window is not None:
            hit.device = self._match_window(request, self.sliding_window)
        elif self.reads_cache(request):
            cached = self.pool.cached
            for block_hash in request.block_hashes[: self._max_hit(request)]:
                if (block := cached.get(block_hash)) is None:
                    break
                hit.device.append(block)
        if self.host is not None:
            hit.host = self._match_host(request, self.host, len(hit.device))
        if self.drop_last_hit_block:
            del (hit.host or hit.device)[-1:]
        return hit

    def _match_window(self, request: Request, window: int) -> list[Block]:
        """Find the longest hit, from its end: only the blocks that the next token sees must exist.

        Source: vLLM v1/core/single_type_kv_cache_manager.py (SlidingWindowManager.find_longest_cache_hit).
        """
        num_needed = max(1, self.num_blocks_for(window - 1)) + self.drop_last_hit_block
        hit: list[Block] = []
        for index in range(self._max_hit(request) - 1, -1, -1):
            if (block := self.pool.cached.get(request.block_hashes[index])) is None:
                hit = []
                continue
            hit.insert(0, block)
            if len(hit) == num_needed:
                return [self.pool.null_block] * index + hit
        return hit

    def _match_host(self, request: Request, host: HostTier, start: int) -> list[Block]:
        """Find host blocks from table entry `start` on: those of a swapped-out request, then cached ones."""
        most = self._max_hit(request)
        blocks = request.host_blocks[start:most]
        if self.reads_cache(request):
            for block_hash in request.block_hashes[start + len(blocks) : most]:
                if (block := host.pool.cached.get(block_hash)) is None:
                    break
                blocks.append(block)
        return blocks

    def in_flight_for(self, request: Request, hit: PrefixHit) -> Request | None:
        """Return the request whose row computes or copies in the block that this one would start with, or None.

        Waiting one step saves computing the block twice: n samples of a prompt prefill it once.
        """
        if not self._in_flight or not self.reads_cache(request):
            return None
        most, hashes = self._max_hit(request), request.block_hashes
        for index in (len(hit.device), hit.num_blocks):  # the first to copy in, the first to compute
            if index < most and (other := self._in_flight.get(hashes[index])) is not None:
                return other
        return None

    def hashes_behind(self, request: Request, num_hit: int) -> list[bytes]:
        """Return the hashes of the blocks that could extend a hit: candidates to fetch from elsewhere."""
        return request.block_hashes[num_hit : self._max_hit(request)] if self.reads_cache(request) else []

    def reads_cache(self, request: Request) -> bool:
        """Whether the request may start with cached blocks. Prompt logprobs need every position computed."""
        params = request.sampling_params
        skips = params.skip_reading_prefix_cache or params.prompt_logprobs is not None
        return self.enable_prefix_caching and not skips

    def _max_hit(self, request: Request) -> int:
        return (request.num_tokens - 1) // self.block_size

    # -- allocating and freeing

    def num_missing(self, request: Request, num_tokens: int, hit: PrefixHit | None = None) -> int:
        """Blocks to allocate before `num_tokens` tokens of the request have a slot."""
        num_shared = len(hit.device) if hit is not None else 0
        return self.num_blocks_for(num_tokens) - len(request.blocks) - num_shared

    def has_room(self, request: Request, num_tokens: int) -> bool:
        """Whether a running request can grow to `num_tokens` tokens without a preemption."""
        return self.num_missing(request, num_tokens) <= len(self.pool.free)

    def num_revived(self, hit: PrefixHit) -> int:
        """Number of blocks of the hit that no request owns: sharing them takes them from the free queue."""
        null = self.pool.null_block
        return sum(block.ref_count == 0 and block is not null for block in hit.device)

    def num_to_start(self, request: Request, chunk: int) -> int:
        """Free blocks that a waiting request will use up when it starts, with `chunk` tokens per step.

        Blocks that a running request is computing for the same prefix count as shared.
        """
        hit = self.match(request)
        num_shared = len(hit.device) - hit.device.count(self.pool.null_block)
        if (other := self.in_flight_for(request, hit)) is not None and self.sliding_window is None:
            num_shared = max(num_shared, _num_common(request.block_hashes, other.block_hashes))
        most = max_blocks_held(request.num_tokens, chunk, self.block_size, self.sliding_window)
        return most - num_shared + self.num_revived(hit)

    def lack_of_blocks(
        self, request: Request, num_tokens: int, hit: PrefixHit | None = None
    ) -> dict[str, int]:
        """Return the details of a refusal for lack of blocks: how many are needed and how many are available.

        A request that wants to start (hit is not None) also needs the watermark to stay free.
        """
        num_revived, kept = (0, 0) if hit is None else (self.num_revived(hit), self.num_kept_free)
        free, evictable = len(self.pool.free) - num_revived, self.pool.num_evictable - num_revived
        return {
            "need": self.num_missing(request, num_tokens, hit) + kept,
            "free": free,
            "evictable": evictable,
        }

    def allocate(self, request: Request, num_tokens: int) -> list[int] | None:
        """Extend the block table of a running request to `num_tokens` tokens.

        Returns the ids appended, or None, with nothing changed, if the free blocks do not suffice.
        """
        if num_tokens <= len(request.blocks) * self.block_size:
            return []
        if (missing := self.num_missing(request, num_tokens)) > len(self.pool.free):
            return None
        new_blocks = self.pool.take(missing, request.request_id)
        request.blocks += new_blocks
        return [block.block_id for block in new_blocks]

    def has_room_to_start(self, request: Request, hit: PrefixHit, num_tokens: int) -> bool:
        """Whether a waiting request can get blocks for `num_tokens` tokens, without those reserved for others."""
        missing = self.num_missing(request, num_tokens, hit)
        return missing <= len(self.pool.free) - self.num_revived(hit) - self.num_claimed - self.num_kept_free

    def admit(self, request: Request, hit: PrefixHit, num_tokens: int) -> list[int] | None:
        """Build the block table of a waiting request for `num_tokens` tokens: first the hit, then fresh blocks.

        Returns the whole table, or None, with nothing changed, if the free blocks do not suffice.
        """
        if not self.has_room_to_start(request, hit, num_tokens):
            return None
        missing = self.num_missing(request, num_tokens, hit)
        request.num_blocks_behind_window = hit.device.count(self.pool.null_block)
        for block in hit.device[request.num_blocks_behind_window :]:
            self.pool.touch(block, request.request_id)
        if self.host is not None:
            self.host.hold(hit.host)
        fresh = self.pool.take(missing, request.request_id)  # what this evicts may go to the host
        if self.host is not None:
            self.host.copy_in(hit.host, fresh[: len(hit.host)])
            copied = request.block_hashes[len(hit.device) : hit.num_blocks]
            self._in_flight.update(dict.fromkeys(copied, request))
            self._leave_host(request, self.host)
        request.blocks = [*hit.device, *fresh]
        request.num_published_blocks = len(hit.device)  # copied blocks count when the step is over
        return [block.block_id for block in request.blocks]

    def swap_out(self, request: Request) -> None:
        """Copy a victim's full computed blocks to the host, as far as there is room. Call `free` next.

        All other tokens are computed again.
        """
        if self.host is not None and self._swap:
            num_computed = request.num_computed_tokens // self.block_size
            hashes = request.block_hashes if self.enable_prefix_caching else None
            request.host_blocks = self.host.swap_out(request.blocks[:num_computed], hashes)

    def free(self, request: Request) -> None:
        """Free the whole block table. Published blocks can be hit until they are reused."""
        self.pool.release(request.blocks[request.num_blocks_behind_window :], request.request_id)
        request.blocks = []
        request.num_published_blocks = 0
        request.num_blocks_behind_window = 0

    def free_behind_window(self, request: Request) -> int:
        """Free the blocks that the request's next token does not see. Returns how many."""
        if self.sliding_window is None:
            return 0
        first_visible = request.num_computed_tokens - self.sliding_window + 1
        start, end = request.num_blocks_behind_window, first_visible // self.block_size
        if end <= start:
            return 0
        self.pool.release(request.blocks[start:end], request.request_id)
        request.blocks[start:end] = [self.pool.null_block] * (end - start)
        request.num_blocks_behind_window = end
        return end - start

    def forget(self, request: Request) -> None:
        """Free all blocks of a request that has ended, on the host too."""
        self.free(request)
        if self.host is not None:
            self._leave_host(request, self.host)

    def _leave_host(self, request: Request, host: HostTier) -> None:
        host.release(request.host_blocks)
        request.host_blocks = []

    # -- one step

    def begin_step(self) -> None:
        self._in_flight.clear()
        self.num_claimed = 0

    def mark_in_flight(self, request: Request, start: int, end: int) -> None:
        """Note that this step computes tokens [start, end) of a request, whole blocks or parts of them."""
        first = start // self.block_size
        if first < len(request.block_hashes):
            hashes = request.block_hashes[first : self.num_blocks_for(end)]
            self._in_flight.update(dict.fromkeys(hashes, request))

    def publish(self, request: Request) -> None:
        """Hash the blocks that new tokens completed, and register those that the step has written."""
        if not self.enable_prefix_caching:
            return
        if len(request.token_ids) // self.block_size > len(request.block_hashes):
            self.hasher.extend(request)
        num_written = request.num_computed_tokens // self.block_size
        while (index := request.num_published_blocks) < num_written:
            self.pool.register(request.blocks[index], request.block_hashes[index], request.request_id)
            request.num_published_blocks += 1

    def close_step(self, stats: StepStats) -> tuple[CopyPairs, CopyPairs]:
        """Return the copies that the worker makes before the planned forward pass: (copy_out, copy_in)."""
        if self.host is None:
            return [], []
        stats.num_blocks_offloaded = self.host.num_offloaded
        copy_out, copy_in = self.host.close_step(stats.step)
        stats.num_blocks_swapped_out = len(copy_out) - stats.num_blocks_offloaded
        stats.num_blocks_copied_in = len(copy_in)
        stats.host_bytes_out = len(copy_out) * self._block_bytes
        stats.host_bytes_in = len(copy_in) * self._block_bytes
        return copy_out, copy_in

    def end_step(self, step: int) -> None:
        """Publish what the step copied to the host."""
        if self.host is not None:
            self.host.end_step(step)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. Return False and change nothing while any block is in use."""
        if self.pool.num_used or (self.host is not None and not self.host.reset()):
            return False
        return self.pool.reset()

    def count_hit(self, request: Request, hit: PrefixHit, stats: StepStats) -> None:
        """Count a new request's hit by source: device, host or KV connector, whose blocks are already on the device."""
        num_tokens, num_host_tokens = hit.num_blocks * self.block_size, len(hit.host) * self.block_size
        num_external = min(request.num_external_tokens, num_tokens - num_host_tokens)
        stats.prefix_cache_queries += request.num_tokens
        stats.prefix_cache_hits += num_tokens - num_external
        stats.prefix_cache_host_hits += num_host_tokens
        if num_tokens:
            by_source = {"device": num_tokens - num_host_tokens - num_external, "host": num_host_tokens}
            by_source[request.external_source] = num_external
            request.cached_tokens_by_source = {source: count for source, count in by_source.items() if count}

    def describe(self, stats: StepStats) -> None:
        """Record the cache's state at the end of a step."""
        pool = self.pool
        stats.num_free_blocks = len(pool.free)
        stats.num_evictable_blocks = pool.num_evictable
        stats.num_saved_blocks = pool.num_saved
        stats.kv_cache_usage = self.usage
        stats.num_evictions = pool.num_evictions - self.num_evictions_before
        self.num_evictions_before = pool.num_evictions

    def check_integrity(self, requests: Iterable[Request]) -> list[str]:
        """Return what is inconsistent in the blocks of all tiers, given every unfinished request."""
        problems = self.pool.check_integrity()
        if self.host is not None:
            owned = [block for request in requests for block in request.host_blocks]
            problems += self.host.check_integrity(owned)
        return problems


def _num_common(hashes: list[bytes], others: list[bytes]) -> int:
    """Length of the common prefix of two hash chains: if they agree at one index, they agree at every earlier one."""
    shorter = range(min(len(hashes), len(others)))
    return bisect_left(shorter, True, key=lambda index: hashes[index] != others[index])

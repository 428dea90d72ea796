"""The scheduler's view of KV memory: block tables, prefix hits, and when a block becomes visible.

    token_ids   t t t t | t t t t | t t t t | t t      block_size = 4, 14 tokens known
    blocks        b7    |   b2    |   b9    |  b4      the block table
                |<---- published -->|                  num_published_blocks = 2: others may hit b7 and b2
                |<----- computed ------->|             num_computed_tokens = 10: their KV is written

With a sliding window, blocks that no later token sees are given back, and the null block stands in their place:

    blocks       null   |  null   |   b9    |  b4      num_blocks_behind_window = 2: token 14 sees 10..14

A block is published only by `publish`, after the step that wrote its last token: nobody can ever
read KV that was planned and not computed. Source: vLLM v1/core/kv_cache_manager.py, which registers
hashes while it schedules; see its PR #43569 for what that can leave behind.
"""

from __future__ import annotations

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
    """Where the KV of a request's first blocks already is, in the order of its tokens:

    | device: shared as they are | host: copied in | compute
    """

    device: list[Block] = field(default_factory=list)
    """Blocks of the device's prefix cache."""
    host: list[Block] = field(default_factory=list)
    """Host blocks behind them; each is copied into a fresh device block."""

    @property
    def num_blocks(self) -> int:
        return len(self.device) + len(self.host)


def max_blocks_held(num_tokens: int, chunk: int, block_size: int, sliding_window: int | None) -> int:
    """Most blocks that a request of `num_tokens` tokens holds at once if a step computes `chunk` of them at most."""
    everything = -(-num_tokens // block_size)
    if sliding_window is None:
        return everything
    num_visible = sliding_window - 1 + chunk
    return min(everything, -(-(num_visible - 1) // block_size) + 1)


class KVManager:
    """Hands blocks to requests and finds prefixes that are already computed."""

    def __init__(
        self,
        config: CacheConfig,
        *,
        model_fingerprint: str = "",
        on_event: OnBlockEvent | None = None,
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
        if self.host is not None and config.tiers.offload:
            self.pool.before_eviction = self.host.offload
        self.num_evictions_before = 0
        """Evictions until the end of the step before this one."""
        self._in_flight: set[bytes] = set()
        """Hashes of the prompt blocks that rows of the current step work on or copy in."""

    @property
    def usage(self) -> float:
        """Share of the blocks that running requests own, 0 to 1."""
        return self.pool.num_used / self.pool.num_usable

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    # -- finding prefixes

    def add(self, request: Request) -> None:
        """Hash the prompt's full blocks."""
        if self.enable_prefix_caching:
            self.hasher.extend(request)

    def match(self, request: Request) -> PrefixHit:
        """The blocks that the request's tokens start with and whose KV exists; nothing is reserved yet.

        Never the whole sequence: at least one token must be computed to have logits to sample from.
        """
        hit = PrefixHit()
        if self.reads_cache(request) and self.sliding_window is not None:
            hit.device = self._match_window(request, self.sliding_window)
        elif self.reads_cache(request):
            cached = self.pool.cached
            for block_hash in request.block_hashes[: self._max_hit(request)]:
                block = cached.get(block_hash)
                if block is None:
                    break
                hit.device.append(block)
        if self.host is not None:
            hit.host = self._match_host(request, self.host, len(hit.device))
        if self.drop_last_hit_block:
            del (hit.host or hit.device)[-1:]
        return hit

    def _match_window(self, request: Request, window: int) -> list[Block]:
        """The longest hit of which only the blocks that the next token sees need to exist, found from its end.

        Source: vLLM v1/core/single_type_kv_cache_manager.py (SlidingWindowManager.find_longest_cache_hit).
        """
        num_needed = max(1, self.num_blocks_for(window - 1)) + self.drop_last_hit_block
        hit: list[Block] = []
        for index in range(self._max_hit(request) - 1, -1, -1):
            block = self.pool.cached.get(request.block_hashes[index])
            if block is None:
                hit = []
                continue
            hit.insert(0, block)
            if len(hit) == num_needed:
                return [self.pool.null_block] * index + hit
        return hit

    def _match_host(self, request: Request, host: HostTier, start: int) -> list[Block]:
        """Host blocks from table entry `start` on: its own, if it was swapped out, then cached ones."""
        most = self._max_hit(request)
        found = request.host_blocks[start:most]
        if self.reads_cache(request):
            for block_hash in request.block_hashes[start + len(found) : most]:
                block = host.pool.cached.get(block_hash)
                if block is None:
                    break
                found.append(block)
        return found

    def is_in_flight(self, request: Request, hit: PrefixHit) -> bool:
        """Whether another request of this step computes or copies in a block that this one would start with.

        If so, waiting one step saves doing it twice: n samples of a prompt prefill it once.
        """
        if not self._in_flight or not self.reads_cache(request):
            return False
        most, hashes = self._max_hit(request), request.block_hashes
        next_blocks = (len(hit.device), hit.num_blocks)  # the first to copy in, the first to compute
        return any(index < most and hashes[index] in self._in_flight for index in next_blocks)

    def hashes_behind(self, request: Request, num_hit: int) -> list[bytes]:
        """The blocks behind a hit by which it could be longer: what is worth fetching from elsewhere."""
        return request.block_hashes[num_hit : self._max_hit(request)] if self.reads_cache(request) else []

    def reads_cache(self, request: Request) -> bool:
        """Prompt logprobs need every prompt position computed, so those requests look up nothing."""
        params = request.sampling_params
        skips = params.skip_reading_prefix_cache or params.prompt_logprobs is not None
        return self.enable_prefix_caching and not skips

    def _max_hit(self, request: Request) -> int:
        return (request.num_tokens - 1) // self.block_size

    # -- taking and giving back

    def num_missing(self, request: Request, num_tokens: int, hit: PrefixHit | None = None) -> int:
        """Blocks to take before `num_tokens` tokens of the request have a place."""
        num_shared = len(hit.device) if hit is not None else 0
        return self.num_blocks_for(num_tokens) - len(request.blocks) - num_shared

    def has_room(self, request: Request, num_tokens: int) -> bool:
        """Whether a running request can grow to `num_tokens` tokens without anybody losing blocks."""
        return self.num_missing(request, num_tokens) <= len(self.pool.free)

    def num_revived(self, hit: PrefixHit) -> int:
        """Blocks of the hit that nobody owns: using them leaves fewer free ones."""
        null = self.pool.null_block
        return sum(block.ref_count == 0 and block is not null for block in hit.device)

    def allocate(self, request: Request, num_tokens: int) -> list[int] | None:
        """Extend the block table of a running request to `num_tokens` tokens.

        Returns the ids appended, or None, with nothing changed, if the free blocks do not suffice.
        """
        if num_tokens <= len(request.blocks) * self.block_size:
            return []
        missing = self.num_missing(request, num_tokens)
        if missing > len(self.pool.free):
            return None
        new_blocks = self.pool.take(missing, request.request_id)
        request.blocks += new_blocks
        return [block.block_id for block in new_blocks]

    def has_room_to_start(self, request: Request, hit: PrefixHit, num_tokens: int) -> bool:
        """Whether a waiting request can have blocks for `num_tokens` tokens."""
        missing = self.num_missing(request, num_tokens, hit)
        return missing <= len(self.pool.free) - self.num_revived(hit)

    def admit(self, request: Request, hit: PrefixHit, num_tokens: int) -> list[int] | None:
        """Give a waiting request its block table for `num_tokens` tokens: first the hit, then fresh blocks.

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
            self._in_flight.update(request.block_hashes[len(hit.device) : len(hit.device) + len(hit.host)])
            self._leave_host(request, self.host)
        request.blocks = [*hit.device, *fresh]
        request.num_published_blocks = len(hit.device)  # what is copied in counts when the step is over
        return [block.block_id for block in request.blocks]

    def swap_out(self, request: Request) -> None:
        """Keep a victim's full computed blocks on the host, as far as there is room; `free` comes next.

        The rest, and always a block that is not full, is computed again.
        """
        if self.host is not None and self._swap:
            num_computed = request.num_computed_tokens // self.block_size
            hashes = request.block_hashes if self.enable_prefix_caching else None
            request.host_blocks = self.host.swap_out(request.blocks[:num_computed], hashes)

    def free(self, request: Request) -> None:
        """Give back the whole block table. Published blocks can be hit until they are reused."""
        self.pool.release(request.blocks[request.num_blocks_behind_window :], request.request_id)
        request.blocks = []
        request.num_published_blocks = 0
        request.num_blocks_behind_window = 0

    def free_behind_window(self, request: Request) -> int:
        """Give back the blocks that the request's next token does not see. Returns how many."""
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
        """Give back everything, on the host too: the request has ended."""
        self.free(request)
        if self.host is not None:
            self._leave_host(request, self.host)

    def _leave_host(self, request: Request, host: HostTier) -> None:
        host.release(request.host_blocks)
        request.host_blocks = []

    # -- one step

    def begin_step(self) -> None:
        self._in_flight.clear()

    def mark_in_flight(self, request: Request, start: int, end: int) -> None:
        """Remember that tokens [start, end) are computed in this step, whole blocks or parts of them."""
        first = start // self.block_size
        if first < len(request.block_hashes):
            self._in_flight.update(request.block_hashes[first : self.num_blocks_for(end)])

    def publish(self, request: Request) -> None:
        """After a step: hash what the new tokens completed, register what the step has written."""
        if not self.enable_prefix_caching:
            return
        if len(request.token_ids) // self.block_size > len(request.block_hashes):
            self.hasher.extend(request)
        num_written = request.num_computed_tokens // self.block_size
        while (index := request.num_published_blocks) < num_written:
            self.pool.register(request.blocks[index], request.block_hashes[index], request.request_id)
            request.num_published_blocks += 1

    def close_step(self, stats: StepStats) -> tuple[CopyPairs, CopyPairs]:
        """What the worker copies before the forward pass of the planned step: (copy_out, copy_in)."""
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
        """The step ran: what it copied to the host can be hit from now on."""
        if self.host is not None:
            self.host.end_step(step)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. False, with nothing changed, while any block is used."""
        if self.pool.num_used or (self.host is not None and not self.host.reset()):
            return False
        return self.pool.reset()

    def describe(self, stats: StepStats) -> None:
        """Write down what the cache holds at the end of a step."""
        pool = self.pool
        stats.num_free_blocks = len(pool.free)
        stats.num_evictable_blocks = pool.num_evictable
        stats.num_saved_blocks = pool.num_saved
        stats.kv_cache_usage = self.usage
        stats.num_evictions = pool.num_evictions - self.num_evictions_before
        self.num_evictions_before = pool.num_evictions

    def check_integrity(self, requests: Iterable[Request]) -> list[str]:
        """What is not as it must be with the blocks of all tiers, given every unfinished request."""
        problems = self.pool.check_integrity()
        if self.host is not None:
            owned = [block for request in requests for block in request.host_blocks]
            problems += self.host.check_integrity(owned)
        return problems

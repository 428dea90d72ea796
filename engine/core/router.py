"""Route a request to the replica that caches its prefix, unless that replica is overloaded.

    request's blocks   h0 h1 h2 h3        known:  h0 h1 -> {0, 1}     h2 -> {1}
                              `- the longest known prefix: replica 1,
                                 if its load is below max_imbalance x the mean; else the least loaded

Affinity alone would send all requests with one system prompt to one engine; least-loaded alone would compute that
prompt in every engine. The bound is that of consistent hashing with bounded loads (Mirrokni et al., arXiv 1608.01350).
The table of known prefixes approximates each engine's cache, as in SGLang's router (cache_aware). With `indexes` it is
exact: each engine publishes its cache (`kv_events.py`), as in NVIDIA's Dynamo and llm-d, but prefixes that are still
being computed are unknown. vLLM looks at loads only (DPLBAsyncMPClient in v1/engine/core_client.py).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence

from engine.config.settings import ConfigError, require_at_least
from engine.core.kv_events import PrefixIndex
from prep_common.text import counted


class PrefixRouter:
    """Counts each replica's unfinished requests, and tracks the prefixes that it caches."""

    def __init__(
        self,
        num_replicas: int,
        *,
        max_imbalance: float = 1.25,
        remembered_blocks: int = 1 << 16,
        indexes: Sequence[PrefixIndex] | None = None,
    ) -> None:
        """max_imbalance: a replica above this multiple of the mean load is not chosen for its prefixes.

        indexes: a copy of each replica's cache, which the caller feeds with KV events; None: approximate the caches by
        the requests that each replica was sent.
        """
        require_at_least(1, num_replicas=num_replicas)
        if indexes is not None and len(indexes) != num_replicas:
            raise ConfigError(
                f"{counted(len(indexes), 'index')} for {counted(num_replicas, 'replica')}: give one for each"
            )
        self._indexes = indexes
        self.max_imbalance = max_imbalance
        self.loads = [0] * num_replicas
        """Unfinished requests of each replica."""
        self.num_routed = [0] * num_replicas
        self.num_by_prefix = [0] * num_replicas
        """Routed requests that went where their prefix was cached."""
        self._alive = set(range(num_replicas))
        self._remembered_blocks = remembered_blocks
        self._holders: OrderedDict[bytes, set[int]] = OrderedDict()

    def route(self, block_hashes: Sequence[bytes]) -> int:
        """Choose the replica for a request whose prompt has these full blocks. Call `finish` when the request ends."""
        replica = self._with_prefix(block_hashes)
        if replica is None:
            replica = min(self._alive, key=lambda index: (self.loads[index], self.num_routed[index], index))
        else:
            self.num_by_prefix[replica] += 1
        self.loads[replica] += 1
        self.num_routed[replica] += 1
        if self._indexes is None:
            self._remember(block_hashes, replica)
        return replica

    def finish(self, replica: int) -> None:
        """Note that a request on this replica has ended."""
        self.loads[replica] -= 1

    def remove(self, replica: int) -> None:
        """Stop routing to a replica."""
        self._alive.discard(replica)

    @property
    def alive(self) -> list[int]:
        return sorted(self._alive)

    def _with_prefix(self, block_hashes: Sequence[bytes]) -> int | None:
        mean = (sum(self.loads[index] for index in self._alive) + 1) / len(self._alive)
        limit = math.ceil(self.max_imbalance * mean)
        for holders in self._holders_by_length(block_hashes):
            free = [r for r in holders if r in self._alive and self.loads[r] < limit]
            if free:
                return min(free, key=lambda index: (self.loads[index], index))
        return None

    def _holders_by_length(self, block_hashes: Sequence[bytes]) -> Iterator[Collection[int]]:
        """Yield the replicas that cache a prefix of the blocks, longest prefix first."""
        if self._indexes is None:
            for block_hash in reversed(block_hashes):
                yield self._holders.get(block_hash, ())
            return
        lengths = [index.num_hit(block_hashes) for index in self._indexes]
        for length in sorted(set(lengths) - {0}, reverse=True):
            yield [replica for replica, num_hit in enumerate(lengths) if num_hit == length]

    def _remember(self, block_hashes: Sequence[bytes], replica: int) -> None:
        for block_hash in reversed(block_hashes):  # forget the front of a prompt last
            self._holders.setdefault(block_hash, set()).add(replica)
            self._holders.move_to_end(block_hash)
        while len(self._holders) > self._remembered_blocks:
            self._holders.popitem(last=False)

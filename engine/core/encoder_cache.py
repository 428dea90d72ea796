"""Which images are encoded, and until when their embeddings are needed.

An image stands in a prompt as a run of placeholder tokens. Their embeddings come from an encoder, once per content:

    token_ids     t t t t | P P P P P P P P | t t t          mm_features: [(hash, offset 4, 8 tokens)]
    a step computes     ^---- chunk ----^                    it overlaps the image: encode it now, or find it here

The scheduler decides, this class remembers, the worker keeps the tensors (`engine/worker/encoder_runner.py`). An entry
is needed from the first chunk that overlaps the image to the last; then it stays for others until it is the least
recently used beyond the capacity. What is needed is never dropped, so one step may exceed the capacity.

Source: vLLM v1/core/encoder_cache_manager.py, which keeps a hard limit and cuts chunks before images instead.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.core.stats import StepStats


@dataclass(frozen=True, slots=True)
class MultiModalFeature:
    """One image of a prompt."""

    mm_hash: str
    """Of its content: what the encoder cache and the prefix cache know it by."""
    offset: int
    """Position of its first placeholder token."""
    num_tokens: int
    data: Any
    """What the encoder takes."""

    def overlaps(self, start: int, end: int) -> bool:
        """Whether tokens [start, end) hold one of its placeholders."""
        return start < self.offset + self.num_tokens and self.offset < end


class EncoderCacheManager:
    """Names of encoded images, who needs them, and whom to drop."""

    def __init__(self, capacity: int) -> None:
        """capacity: embeddings (tokens) to keep."""
        self.capacity = capacity
        self.num_tokens = 0
        """Embeddings kept now."""
        self._size: OrderedDict[str, int] = OrderedDict()  # least recently used first
        self._needed_by: dict[str, set[str]] = {}

    def __contains__(self, mm_hash: str) -> bool:
        return mm_hash in self._size

    def need(self, request_id: str, feature: MultiModalFeature) -> bool:
        """A row of this step reads the image. True if it must be encoded first; from now on it counts as encoded."""
        is_new = feature.mm_hash not in self._size
        if is_new:
            self._size[feature.mm_hash] = feature.num_tokens
            self.num_tokens += feature.num_tokens
        self._size.move_to_end(feature.mm_hash)
        self._needed_by.setdefault(feature.mm_hash, set()).add(request_id)
        return is_new

    def release(self, request_id: str, feature: MultiModalFeature) -> None:
        """The request has computed all of the image's tokens, or is gone."""
        needed_by = self._needed_by.get(feature.mm_hash)
        if needed_by is not None:
            needed_by.discard(request_id)
            if not needed_by:
                del self._needed_by[feature.mm_hash]

    def plan(
        self, request_id: str, features: Sequence[MultiModalFeature], start: int, end: int, stats: StepStats
    ) -> list[MultiModalFeature]:
        """The images that a row of tokens [start, end) reads and nobody has encoded yet."""
        read = [feature for feature in features if feature.overlaps(start, end)]
        new = [feature for feature in read if self.need(request_id, feature)]
        stats.encoder_cache_queries += len(read)
        stats.encoder_cache_hits += len(read) - len(new)
        return new

    def release_computed(
        self, request_id: str, features: Sequence[MultiModalFeature], num_tokens: int
    ) -> None:
        """The request's first `num_tokens` tokens are computed: it needs the images in them no more."""
        for feature in features:
            if feature.offset + feature.num_tokens <= num_tokens:
                self.release(request_id, feature)

    def release_all(self, request_id: str, features: Sequence[MultiModalFeature]) -> None:
        """The request runs no more."""
        for feature in features:
            self.release(request_id, feature)

    def take_dropped(self) -> list[str]:
        """Hashes that the worker shall forget before the next step, the least recently used beyond the capacity."""
        dropped: list[str] = []
        if self.num_tokens > self.capacity:
            for mm_hash in [name for name in self._size if name not in self._needed_by]:
                self.num_tokens -= self._size.pop(mm_hash)
                dropped.append(mm_hash)
                if self.num_tokens <= self.capacity:
                    break
        return dropped

    def check_integrity(self, live: set[str]) -> list[str]:
        """What is not as it must be; `live`: ids of the running requests."""
        problems = []
        if sum(self._size.values()) != self.num_tokens:
            problems.append(f"the encoder cache counts {self.num_tokens} tokens, its entries hold others")
        for mm_hash, request_ids in self._needed_by.items():
            if mm_hash not in self._size:
                problems.append(f"image {mm_hash[:8]} is needed and not encoded")
            if request_ids - live:
                problems.append(
                    f"image {mm_hash[:8]} is held by {sorted(request_ids - live)}, which do not run"
                )
        return problems

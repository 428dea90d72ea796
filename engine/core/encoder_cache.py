"""Encoded images, and how long their embeddings are needed.

An image stands in a prompt as a run of placeholder tokens. Their embeddings come from an encoder, once per content:

    token_ids     t t t t | P P P P P P P P | t t t          mm_features: [(hash, offset 4, 8 tokens)]
    a step computes     ^---- chunk ----^                    it overlaps the image: encode it now, or find it here

The worker keeps the tensors (`engine/worker/encoder_runner.py`). An entry is needed from the first chunk that overlaps
the image to the last. It stays for later requests until it is the least recently used beyond the capacity. A needed
entry is never dropped, so one step may exceed the capacity.
Source: vLLM v1/core/encoder_cache_manager.py, which keeps a hard limit and cuts chunks before images instead.
"""

from __future__ import annotations

from collections import OrderedDict

from engine.core.admission_resource import AdmissionResource
from engine.core.request import MultiModalFeature, Request
from engine.core.sched_output import ModelRunnerOutput, Scheduled, SchedulerOutput
from engine.core.stats import StepStats


class EncoderCache(AdmissionResource):
    """Names of the encoded images, the requests that need them, and the order of eviction."""

    def __init__(self, capacity: int) -> None:
        """capacity: embeddings (tokens) to keep."""
        self.capacity = capacity
        self.num_tokens = 0
        """Embeddings kept now."""
        self._size: OrderedDict[str, int] = OrderedDict()  # least recently used first
        self._needed_by: dict[str, set[str]] = {}
        self._readers: dict[str, Request] = {}
        """Running requests with images, by id."""

    def __contains__(self, mm_hash: str) -> bool:
        return mm_hash in self._size

    def acquire(self, request: Request) -> None:
        if request.mm_features:
            self._readers[request.request_id] = request

    def release(self, request: Request) -> None:
        if self._readers.pop(request.request_id, None) is not None:
            for feature in request.mm_features:
                self.let_go(request.request_id, feature)

    def need(self, request_id: str, feature: MultiModalFeature) -> bool:
        """Note that a row of this step reads the image. True if it must be encoded first; it then counts as encoded."""
        is_new = feature.mm_hash not in self._size
        if is_new:
            self._size[feature.mm_hash] = feature.num_tokens
            self.num_tokens += feature.num_tokens
        self._size.move_to_end(feature.mm_hash)
        self._needed_by.setdefault(feature.mm_hash, set()).add(request_id)
        return is_new

    def let_go(self, request_id: str, feature: MultiModalFeature) -> None:
        """Note that the request needs the image no more: all its tokens are computed, or the request stopped."""
        needed_by = self._needed_by.get(feature.mm_hash, set())
        needed_by.discard(request_id)
        if not needed_by:
            self._needed_by.pop(feature.mm_hash, None)

    def close_step(self, out: SchedulerOutput, stats: StepStats) -> None:
        if self._readers:
            for row in out.scheduled:
                if (request := self._readers.get(row.request_id)) is not None:
                    self._plan_row(request, row, stats)
        out.dropped_encoder_hashes = self.take_dropped()

    def _plan_row(self, request: Request, row: Scheduled, stats: StepStats) -> None:
        """Let the row encode the images that it reads and no row before has."""
        end = row.start + row.num_tokens
        read = [feature for feature in request.mm_features if feature.overlaps(row.start, end)]
        row.encoder_inputs = [feature for feature in read if self.need(row.request_id, feature)]
        stats.encoder_cache_queries += len(read)
        stats.encoder_cache_hits += len(read) - len(row.encoder_inputs)

    def take_dropped(self) -> list[str]:
        """Return the hashes that the worker must forget: the least recently used beyond the capacity."""
        dropped: list[str] = []
        if self.num_tokens > self.capacity:
            for mm_hash in [name for name in self._size if name not in self._needed_by]:
                self.num_tokens -= self._size.pop(mm_hash)
                dropped.append(mm_hash)
                if self.num_tokens <= self.capacity:
                    break
        return dropped

    def end_step(self, result: ModelRunnerOutput, stats: StepStats) -> tuple[()]:
        for request in self._readers.values():
            for feature in request.mm_features:
                if feature.offset + feature.num_tokens <= request.num_computed_tokens:
                    self.let_go(request.request_id, feature)
        return ()

    def check_integrity(self, running: list[Request], waiting: list[Request]) -> list[str]:
        live = {request.request_id for request in running}
        problems = []
        if sum(self._size.values()) != self.num_tokens:
            problems.append(f"the encoder cache counts {self.num_tokens} tokens, its entries hold others")
        for mm_hash, request_ids in self._needed_by.items():
            if mm_hash not in self._size:
                problems.append(f"image {mm_hash[:8]} is needed and not encoded")
            if gone := sorted(request_ids - live):
                problems.append(f"image {mm_hash[:8]} is held by {gone}, which do not run")
        return problems

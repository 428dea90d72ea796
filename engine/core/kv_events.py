"""Publish the changes of the prefix cache: the feed that a router subscribes to.

    BlockPool --seal, evict--> KVEventFeed --a batch per step--> publisher --> PrefixIndex (a router's copy)
                                                                 memory        {hash, ...} == pool.cached
                                                                 file
                                                                 zmq (kv_zmq.py)

    step 7   BlockStored   h1 h2 after h0, their tokens          a request's blocks are written
             BlockRemoved  h9                                    its block was reused
    reset    AllBlocksCleared

Batches are numbered. A reader that misses one clears its index and goes on: the index is then incomplete, never wrong.
Hashes cover adapter, salt and images, so equal hashes mean equal KV in every engine of the same model. Copies on the
host or the disk are not announced.
Source: vLLM distributed/kv_events.py and the kv_event_queue of v1/core/block_pool.py.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol

from engine.config.combinations import check_combinations
from engine.config.settings import ConfigError
from engine.core.blocks import Block, BlockEvent, add_listener, remove_listener
from engine.core.kv_transfers import KVTransfers
from engine.core.observer import StepObserver
from engine.core.request import Request

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class BlockStored:
    """Consecutive blocks of one sequence can be hit."""

    block_hashes: list[bytes]
    parent_block_hash: bytes | None
    """Hash of the block before the first; None at the start of a sequence."""
    token_ids: list[int]
    """Tokens of all blocks: len(block_hashes) * block_size."""
    block_size: int
    lora_key: str | None
    extra_keys: list[list[str] | None] | None = None
    """Per block, what else its hash covers: the salt of the first one, and images. None: nothing in all blocks."""

    @property
    def lora_name(self) -> str | None:
        """The adapter as requests name it."""
        return None if self.lora_key is None else self.lora_key.partition("|")[0]


@dataclass(slots=True)
class BlockRemoved:
    """Blocks can no longer be hit."""

    block_hashes: list[bytes]


@dataclass(slots=True)
class AllBlocksCleared:
    """The cache is empty."""


KVCacheEvent = BlockStored | BlockRemoved | AllBlocksCleared
EVENT_TYPES: dict[str, type[KVCacheEvent]] = {
    cls.__name__: cls for cls in (BlockStored, BlockRemoved, AllBlocksCleared)
}


@dataclass(slots=True)
class KVEventBatch:
    """Changes of one step, in order."""

    seq: int
    """0, 1, 2, ...: after a gap, a reader has missed a batch."""
    ts: float
    """Seconds since 1970."""
    events: list[KVCacheEvent] = field(default_factory=list)

    def to_json(self) -> str:
        """Return one line. Hashes are hexadecimal; `type` is an event's class."""
        events = [{"type": type(event).__name__, **asdict(event)} for event in self.events]
        return json.dumps({"seq": self.seq, "ts": self.ts, "events": events}, default=bytes.hex)

    @classmethod
    def from_json(cls, line: str) -> KVEventBatch:
        raw = json.loads(line)
        return cls(raw["seq"], raw["ts"], [_event(event) for event in raw["events"]])


def _event(raw: dict[str, Any]) -> KVCacheEvent:
    cls = EVENT_TYPES[raw.pop("type")]
    if "block_hashes" in raw:
        raw["block_hashes"] = [bytes.fromhex(block_hash) for block_hash in raw["block_hashes"]]
    if raw.get("parent_block_hash") is not None:
        raw["parent_block_hash"] = bytes.fromhex(raw["parent_block_hash"])
    return cls(**raw)


# -- publishers: `publish` runs inside the engine's step, so it must not wait for a reader


class Publisher(Protocol):
    def publish(self, batch: KVEventBatch) -> None: ...
    def close(self) -> None: ...


class MemoryPublisher:
    """A bounded queue for one reader. A slow reader loses the oldest batches."""

    def __init__(self, max_queue_size: int) -> None:
        self._batches: deque[KVEventBatch] = deque(maxlen=max_queue_size)

    def publish(self, batch: KVEventBatch) -> None:
        self._batches.append(batch)

    def take(self) -> list[KVEventBatch]:
        """Return the batches published since the last call, oldest first."""
        return [self._batches.popleft() for _ in range(len(self._batches))]

    def close(self) -> None:
        """Do nothing: queued batches can still be taken."""


class FilePublisher:
    """JSON lines, flushed with each step, so that another process can follow."""

    def __init__(self, path: str | Path) -> None:
        try:
            self._file = open(path, "x", encoding="utf-8")
        except OSError as error:
            what = f"kv_events_config: cannot create {path} ({error.strerror})"
            raise ConfigError(f"{what}; name a file that does not exist, in a folder that does") from error

    def publish(self, batch: KVEventBatch) -> None:
        self._file.write(batch.to_json() + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_batches(path: str | Path) -> Iterator[KVEventBatch]:
    """Yield the batches of a FilePublisher's file. An incomplete last line is left out."""
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield KVEventBatch.from_json(line)


# -- the engine's side


class KVEventFeed(StepObserver):
    """Publishes the changes of a scheduler's block pool after each step."""

    def __init__(
        self,
        scheduler: Any,
        publisher: Publisher,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """scheduler: fresh, with `requests` and `kv.pool`."""
        if not hasattr(getattr(scheduler, "kv", None), "pool"):
            raise ConfigError(
                f"kv_events_config does not work with {type(scheduler).__name__}: it has no kv.pool, the BlockPool "
                "whose events are published. Leave kv_events_config out, or keep the blocks in a KVManager"
            )
        check_combinations(kv_events=True, kv_connector=KVTransfers.of(scheduler) is not None)
        self.publisher = publisher
        self._requests: dict[str, Request] = scheduler.requests
        self._block_size: int = scheduler.kv.block_size
        self._pool = scheduler.kv.pool
        self._clock = clock
        self._num_published = 0
        self._events: list[KVCacheEvent] = []
        """Since the last batch."""
        add_listener(self._pool, self._on_event)

    def step(self, *_step: object) -> None:
        """The step is over: publish what it changed, if anything."""
        if not self._events:
            return
        batch = KVEventBatch(self._num_published, self._clock(), self._events)
        self._num_published += 1
        self._events = []
        try:
            self.publisher.publish(batch)
        except OSError as error:
            logger.warning("KV events stopped: %s. The engine goes on; start a new one for a new feed", error)
            self.close()

    def reset(self) -> None:
        """Publish at once that the cache is empty, instead of naming every block."""
        self._events = [AllBlocksCleared()]
        self.step()

    def close(self) -> None:
        """Stop listening. More than once is as good as once."""
        remove_listener(self._pool, self._on_event)
        self._events = []
        try:
            self.publisher.close()
        except OSError as error:
            logger.warning("the last KV events could not be written: %s", error)

    def _on_event(self, kind: BlockEvent, block: Block, request_id: str | None) -> None:
        if block.block_hash is None:
            return
        last = self._events[-1] if self._events else None
        if kind == "seal":
            assert request_id is not None  # only a KV connector seals without a request
            self._store(block.block_hash, self._requests[request_id])
        elif kind == "evict":
            if isinstance(last, BlockRemoved):
                last.block_hashes.append(block.block_hash)
            else:
                self._events.append(BlockRemoved([block.block_hash]))

    def _store(self, block_hash: bytes, request: Request) -> None:
        """Add a request's block to the last event, if it continues that event's sequence, or to a new one."""
        size, index = self._block_size, request.num_published_blocks
        parent = request.block_hashes[index - 1] if index else None
        tokens = request.token_ids[index * size : (index + 1) * size]
        extra = self._extra_keys(request, index)
        last = self._events[-1] if self._events else None
        if not (isinstance(last, BlockStored) and last.block_hashes[-1] == parent):
            last = BlockStored([], parent, [], size, request.lora_key)
            self._events.append(last)
        if extra and last.extra_keys is None:
            last.extra_keys = [None] * len(last.block_hashes)
        if last.extra_keys is not None:
            last.extra_keys.append(extra or None)
        last.block_hashes.append(block_hash)
        last.token_ids += tokens

    def _extra_keys(self, request: Request, index: int) -> list[str]:
        start, end = index * self._block_size, (index + 1) * self._block_size
        images = [
            f"{feature.mm_hash}@{feature.offset - start}"
            for feature in request.mm_features
            if feature.overlaps(start, end)
        ]
        return images + ([request.cache_salt] if index == 0 and request.cache_salt is not None else [])


# -- the reader's side


class PrefixIndex:
    """A copy of one engine's prefix index, built from its events."""

    def __init__(self) -> None:
        self.hashes: set[bytes] = set()
        self.num_missed = 0
        """Batches that were missed."""
        self._next_seq = 0

    def apply(self, batch: KVEventBatch) -> None:
        """Apply the next batch; after a gap, clear the index first. Raises ValueError if a batch comes late."""
        if batch.seq < self._next_seq:
            raise ValueError(
                f"batch {batch.seq} after {self._next_seq - 1}: batches must come once each, in order"
            )
        if batch.seq > self._next_seq:
            self.num_missed += batch.seq - self._next_seq
            self.hashes.clear()
        self._next_seq = batch.seq + 1
        for event in batch.events:
            if isinstance(event, BlockStored):
                self.hashes.update(event.block_hashes)
            elif isinstance(event, BlockRemoved):
                self.hashes.difference_update(event.block_hashes)
            else:
                self.hashes.clear()

    def num_hit(self, block_hashes: Sequence[bytes]) -> int:
        """Return how many blocks of a sequence, from its start, are cached."""
        return sum(1 for _ in takewhile(self.hashes.__contains__, block_hashes))

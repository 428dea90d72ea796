"""A backend's prefix cache, as its KV events tell it.

    engine   BlockStored  hashes h1 h2 after h0, tokens -->  KVIndex   h1 -> key, h2 -> key
    client   prompt --tokens of /tokenize--> key, key, key             cached keys from the start: the hit

Keys are made here from the tokens, so an engine may hash its blocks as it likes: ours and vLLM's are read alike, and no
secret of theirs is needed. Source: llm-d's precise prefix scorer.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from engine.core.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
from engine.core.kv_zmq import decode

logger = logging.getLogger(__name__)

MOST_REMOVED = 10_000
"""Keys of removed blocks that an index keeps."""
REPLAY_S = 1.0
"""Time for each batch of a replay."""


@dataclass(frozen=True)
class PromptTokens:
    """A prompt as an engine sees it."""

    tokens: tuple[int, ...]
    salt: str | None = None
    _keys: dict[tuple[int, str | None], list[bytes]] = field(default_factory=dict, compare=False, repr=False)

    def keys(self, block_size: int, adapter: str | None) -> list[bytes]:
        """Return the keys of its full blocks."""
        keys = self._keys.get((block_size, adapter))
        if keys is None:
            extra = [[self.salt]] if self.salt else []
            keys = self._keys[block_size, adapter] = chain(b"", self.tokens, block_size, adapter, extra)
        return keys


class KVIndex:
    """The keys of the blocks that one backend caches."""

    def __init__(self) -> None:
        self.block_size: int | None = None
        self.is_known = False
        """Whether it has said anything; else its cache must be guessed."""
        self.num_missed = 0
        """Batches that could not be had again: the index then knows too little, and nothing false."""
        self._key_of: dict[Any, bytes] = {}
        self._removed: dict[Any, bytes] = {}
        """Keys of blocks that left. A running request may own a copy of such a block, and store what follows it."""
        self._num_cached: Counter[bytes] = Counter()
        self._next_seq, self._last_ts = 0, 0.0

    def __len__(self) -> int:
        return len(self._num_cached)

    def hit(self, prompt: PromptTokens, adapter: str | None) -> int:
        """Return the prompt's tokens that are cached, from its start."""
        if self.block_size is None:
            return 0
        keys = prompt.keys(self.block_size, adapter)
        return self.block_size * sum(1 for _ in takewhile(self._num_cached.__contains__, keys))

    def missing(self, batch: KVEventBatch) -> int | None:
        """Return the first number to ask for again before this batch is applied; None if nothing is missing."""
        if batch.seq < self._next_seq and batch.ts > self._last_ts:  # it started anew
            return 0 if batch.seq else None
        return self._next_seq if batch.seq > self._next_seq else None

    def apply(self, batch: KVEventBatch) -> None:
        """Apply a batch; one that came before is ignored. A gap, or an engine that started anew, empties the index."""
        if batch.seq < self._next_seq and batch.ts <= self._last_ts:
            return
        if batch.seq != self._next_seq:
            self.num_missed += max(0, batch.seq - self._next_seq)
            self._clear()
        self._next_seq, self._last_ts, self.is_known = batch.seq + 1, batch.ts, True
        for event in batch.events:
            if isinstance(event, BlockStored):
                self._store(event)
            elif isinstance(event, BlockRemoved):
                self._remove(event.block_hashes)
            elif isinstance(event, AllBlocksCleared):
                self._clear()

    def _store(self, event: BlockStored) -> None:
        parent = b"" if event.parent_block_hash is None else self._key(event.parent_block_hash)
        if parent is None:
            return  # its beginning was missed: no prompt can hit it
        self.block_size = event.block_size
        extra = [keys or [] for keys in event.extra_keys or []]
        keys = chain(parent, event.token_ids, event.block_size, event.lora_name, extra)
        for block_hash, key in zip(event.block_hashes, keys, strict=False):
            self._remove([block_hash])
            self._removed.pop(block_hash, None)
            self._key_of[block_hash] = key
            self._num_cached[key] += 1

    def _key(self, block_hash: Any) -> bytes | None:
        return self._key_of.get(block_hash) or self._removed.get(block_hash)

    def _remove(self, block_hashes: Iterable[Any]) -> None:
        for block_hash in block_hashes:
            key = self._key_of.pop(block_hash, None)
            if key is not None:
                self._removed[block_hash] = key
                if len(self._removed) > MOST_REMOVED:
                    del self._removed[next(iter(self._removed))]
                self._num_cached[key] -= 1
                if not self._num_cached[key]:
                    del self._num_cached[key]

    def _clear(self) -> None:
        self._key_of.clear()
        self._removed.clear()
        self._num_cached.clear()

    def forget(self) -> None:
        """The backend was away: nothing is known of it."""
        self._clear()
        self._next_seq, self._last_ts, self.is_known = 0, 0.0, False


def chain(
    parent: bytes, tokens: Sequence[int], block_size: int, adapter: str | None, extra: Sequence[Sequence[Any]]
) -> list[bytes]:
    """Return a key for every full block: of the block before, its tokens, the adapter, and what else shapes it."""
    keys = []
    for number in range(len(tokens) // block_size):
        block = tokens[number * block_size : (number + 1) * block_size]
        more = repr((adapter, [str(part) for part in extra[number]] if number < len(extra) else []))
        packed = struct.pack(f"<{block_size}q", *block)
        parent = hashlib.blake2b(parent + packed + more.encode(errors="replace"), digest_size=16).digest()
        keys.append(parent)
    return keys


async def follow(index: KVIndex, endpoint: str, replay_endpoint: str | None) -> None:
    """Keep an index up to date, for ever: what was before from the replay, then batch by batch."""
    import zmq
    import zmq.asyncio

    context = zmq.asyncio.Context.instance()
    with context.socket(zmq.SUB) as sub:
        sub.set_hwm(0)
        sub.connect(endpoint)
        sub.subscribe(b"")
        if replay_endpoint is not None:
            index.is_known = await _replay(index, context, replay_endpoint, 0)
        while True:
            frames = await sub.recv_multipart()
            try:
                batch = decode(frames[-2], frames[-1])
            except (ValueError, IndexError) as error:
                logger.warning("KV events of %s: %s", endpoint, error)
                continue
            first = index.missing(batch)
            if first is not None and replay_endpoint is not None:
                await _replay(index, context, replay_endpoint, first)
            index.apply(batch)


async def _replay(index: KVIndex, context: Any, endpoint: str, first: int) -> bool:
    """Apply the batches from `first` on that the engine still has; return whether it answered."""
    import zmq

    with context.socket(zmq.DEALER) as dealer:
        dealer.set_hwm(0)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(endpoint)
        await dealer.send_multipart((b"", first.to_bytes(8, "big")))
        try:
            while True:
                *_, number, payload = await asyncio.wait_for(dealer.recv_multipart(), REPLAY_S)
                if not payload:
                    return True
                index.apply(decode(number, payload))
        except (TimeoutError, ValueError) as error:
            logger.warning("replay of KV events from %s: %s", endpoint, str(error) or "no answer")
            return False

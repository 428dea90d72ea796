"""The gateway's index of a backend's cache against the cache itself."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from engine.config import KVEventsConfig
from engine.core.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVEventBatch,
    KVEventFeed,
    MemoryPublisher,
)
from engine.core.kv_zmq import ZmqPublisher, decode, encode
from engine.gateway import kv_index
from engine.gateway.kv_index import KVIndex, PromptTokens, follow
from tests.core.shadow_kv import Simulation
from tests.core.workloads import Workload
from tests.seeds import seeds
from tests.waiting import one_turn, until


class IndexedSimulation(Simulation):
    """After every step, the index knows of every request exactly the blocks that can be hit."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self.publisher = MemoryPublisher(1000)
        self.feed = KVEventFeed(self.scheduler, self.publisher, clock=lambda: 0.0)
        self.index = KVIndex()
        self.num_hits = self.num_misses = 0

    def _step(self, step: int) -> None:
        super()._step(step)
        self.feed.step()
        for batch in self.publisher.take():
            self.index.apply(decode(batch.seq.to_bytes(8, "big"), encode(batch)))
        cached = self.scheduler.kv.pool.cached
        for request in self.scheduler.requests.values():
            hashes = request.block_hashes
            there = next((n for n, each in enumerate(hashes) if each not in cached), len(hashes))
            prompt = PromptTokens(tuple(request.token_ids), request.cache_salt)
            if not request.mm_features:
                hit = self.index.hit(prompt, request.lora_key)
                assert hit == there * self.scheduler.kv.block_size, f"seed {self.workload.seed}"
                self.num_hits += there
                self.num_misses += len(hashes) - there


def test_the_index_knows_what_the_engine_caches_at_every_step_of_any_workload() -> None:
    hits = misses = 0
    for seed in seeds(40):
        simulation = IndexedSimulation(Workload.random(seed))
        simulation.run()
        hits, misses = hits + simulation.num_hits, misses + simulation.num_misses
    assert min(hits, misses) > 100, (hits, misses)


def stored(seq: int, tokens: list[int], parent: bytes | None = None) -> KVEventBatch:
    hashes = [f"h{token}".encode() for token in tokens]
    return KVEventBatch(seq, float(seq), [BlockStored(hashes, parent, tokens, 1, None)])


def test_a_block_that_was_stored_behind_a_removed_one_is_hit_when_that_is_back() -> None:
    """A running request owns a copy of the removed block, and publishes the next one."""
    index, prompt = KVIndex(), PromptTokens((1, 2))
    events: list[Any] = [
        BlockStored([b"h1"], None, [1], 1, None),
        BlockRemoved([b"h1"]),
        BlockStored([b"h2"], b"h1", [2], 1, None),
    ]
    index.apply(KVEventBatch(0, 0.0, events))
    assert index.hit(prompt, None) == 0
    index.apply(KVEventBatch(1, 1.0, events[:1]))
    assert index.hit(prompt, None) == 2


def test_keys_of_removed_blocks_are_forgotten_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_index, "MOST_REMOVED", 3)
    index = KVIndex()
    for number in range(100):
        block = f"h{number}".encode()
        events = [BlockStored([block], None, [number], 1, None), BlockRemoved([block])]
        index.apply(KVEventBatch(number, float(number), events))
    assert len(index._removed) == 3


def test_a_block_that_was_stored_again_is_forgotten_by_its_last_removal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kv_index, "MOST_REMOVED", 2)
    index = KVIndex()
    for number, block in enumerate([b"a", b"b", b"a", b"c"]):
        events = [BlockStored([block], None, [block[0]], 1, None), BlockRemoved([block])]
        index.apply(KVEventBatch(number, float(number), events))
    child = BlockStored([b"d"], b"a", [9], 1, None)
    index.apply(KVEventBatch(4, 4.0, [child, BlockStored([b"a"], None, [b"a"[0]], 1, None)]))
    assert index.hit(PromptTokens((b"a"[0], 9)), None) == 2
    assert b"a" not in index._removed, "it takes no room while it is cached"


def test_a_gap_empties_the_index_and_what_comes_twice_is_ignored() -> None:
    index, prompt = KVIndex(), PromptTokens((1, 2, 3))
    index.apply(stored(0, [1, 2]))
    assert index.hit(prompt, None) == 2 and index.missing(stored(1, [3])) is None
    index.apply(stored(0, [1, 2]))
    index.apply(KVEventBatch(1, 1.0, [BlockRemoved([b"h2"])]))
    assert index.hit(prompt, None) == 1 and index.missing(stored(4, [3], b"h2")) == 2
    index.apply(stored(4, [3], b"h2"))
    assert index.hit(prompt, None) == len(index) == 0 and index.num_missed == 2, "too little, nothing false"
    index.apply(KVEventBatch(0, 9.0, [BlockStored([b"n1"], None, [1], 1, None)]))
    assert index.hit(prompt, None) == 1, "the engine started anew"
    assert index.missing(KVEventBatch(0, 10.0, [])) is None and index.missing(KVEventBatch(7, 10.0, [])) == 1
    index.apply(KVEventBatch(1, 11.0, [AllBlocksCleared()]))
    assert len(index) == 0


def test_salt_and_adapter_are_part_of_a_prefix() -> None:
    index = KVIndex()
    index.apply(KVEventBatch(0, 1.0, [BlockStored([b"a"], None, [1, 2], 2, "ad", [["salt"]])]))
    prompts = {(salt, name): index.hit(PromptTokens((1, 2, 3), salt), name)
               for salt in (None, "salt", "ad") for name in (None, "ad")}  # fmt: skip
    assert {what for what, hit in prompts.items() if hit} == {("salt", "ad")}


async def test_a_late_reader_and_one_that_missed_batches_catch_up_by_the_replay(tmp_path: Path) -> None:
    config = KVEventsConfig("zmq", endpoint=f"ipc://{tmp_path}/e", replay_endpoint=f"ipc://{tmp_path}/r")
    publisher, index = ZmqPublisher(config), KVIndex()
    tokens = list(range(1, 2001))
    for seq, token in enumerate(tokens[:1500]):  # more than a socket holds by default
        publisher.publish(stored(seq, [token], f"h{token - 1}".encode() if seq else None))
    following = asyncio.create_task(follow(index, config.endpoint, config.replay_endpoint))
    try:
        await until(lambda: index.hit(PromptTokens(tuple(tokens)), None) == 1500)
        seq, rng = 1500, random.Random(1)
        while seq < 2000:
            for _ in range(rng.randrange(1, 40)):
                if seq < 2000:
                    batch = stored(seq, [tokens[seq]], f"h{seq}".encode())
                    if rng.random() < 0.3:  # lost on the way, but kept by the engine
                        publisher._kept.append((seq.to_bytes(8, "big"), encode(batch)))
                    else:
                        publisher.publish(batch)
                    seq += 1
            await one_turn()
        publisher.publish(KVEventBatch(2000, 2000.0, []))
        await until(lambda: index.hit(PromptTokens(tuple(tokens)), None) == 2000)
        assert index.num_missed == 0
    finally:
        following.cancel()
        publisher.close()

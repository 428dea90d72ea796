"""From its events alone a reader knows what the prefix cache holds, at every step."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from engine.config import ConfigError, KVEventsConfig
from engine.core.blocks import BlockPool, FanOut, add_listener, remove_listener
from engine.core.hashing import BlockHasher
from engine.core.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    FilePublisher,
    KVEventBatch,
    KVEventFeed,
    MemoryPublisher,
    PrefixIndex,
    read_batches,
)
from engine.core.router import PrefixRouter
from engine.trace.writer import TraceWriter
from tests.core.driver import Driver, make_request
from tests.core.shadow_kv import Simulation
from tests.core.workloads import Workload


class ToldSimulation(Simulation):
    """A reader beside a workload: it rebuilds the prefix index and checks every hash by its tokens."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self.publisher = MemoryPublisher(1000)
        self.feed = KVEventFeed(self.scheduler, self.publisher, clock=lambda: 0.0)
        self.index = PrefixIndex()
        self.hasher = BlockHasher(
            workload.cache.block_size, kv_cache_dtype=workload.cache.kv_cache_dtype, model_fingerprint=""
        )
        self.salts = {ask.cache_salt for ask in workload.asks}
        self.num_stored = self.num_removed = 0

    def _step(self, step: int) -> None:
        super()._step(step)
        self.feed.step()
        self.read()

    def read(self) -> None:
        for batch in self.publisher.take():
            for event in batch.events:
                if isinstance(event, BlockStored):
                    self.check_tokens(event)
                    self.num_stored += len(event.block_hashes)
                elif isinstance(event, BlockRemoved):
                    assert set(event.block_hashes) <= self.index.hashes | self.stored_in(batch.events)
                    self.num_removed += len(event.block_hashes)
            self.index.apply(batch)
        assert self.index.hashes == self.scheduler.kv.pool.cached.keys()

    def stored_in(self, events: Iterable[Any]) -> set[bytes]:
        return {each for event in events if isinstance(event, BlockStored) for each in event.block_hashes}

    def check_tokens(self, event: BlockStored) -> None:
        """The hashes are those of parent and tokens, computed again."""
        size = event.block_size
        assert len(event.token_ids) == len(event.block_hashes) * size
        parents = [event.parent_block_hash]
        if event.parent_block_hash is None:
            parents = [self.hasher.root(event.lora_key, salt) for salt in self.salts]
        chains = []
        for parent in parents:
            chain = []
            for start in range(0, len(event.token_ids), size):
                tokens = event.token_ids[start : start + size]
                parent = self.hasher._hash(parent + self.hasher._encode_tokens(*tokens))
                chain.append(parent)
            chains.append(chain)
        assert event.block_hashes in chains


def test_the_events_alone_rebuild_the_prefix_index_at_every_step_of_any_workload() -> None:
    stored = removed = preempted = copied_in = 0
    for seed in range(150):
        simulation = ToldSimulation(Workload.random(seed))
        summary = simulation.run()
        assert simulation.scheduler.reset_prefix_cache()
        simulation.feed.step()
        simulation.read()
        assert not simulation.index.hashes
        stored, removed = stored + simulation.num_stored, removed + simulation.num_removed
        preempted, copied_in = preempted + summary.preemptions, copied_in + summary.copied_in
    assert stored == removed > 1000 and min(preempted, copied_in) > 50


def told(driver: Driver, **options: Any) -> tuple[KVEventFeed, MemoryPublisher]:
    publisher = MemoryPublisher(options.pop("max_queue_size", 100))
    return KVEventFeed(driver.scheduler, publisher, clock=lambda: 0.0), publisher


def test_blocks_of_a_sequence_are_one_event_and_go_on_where_the_last_step_ended() -> None:
    driver = Driver(budget=8)
    feed, publisher = told(driver)
    prompt = list(range(20))
    request = driver.add("a", prompt, lora_key="adapter")
    for _ in range(2):
        driver.step()
        feed.step()
    first, second = publisher.take()
    hashes = request.block_hashes
    assert first.events == [BlockStored(hashes[:2], None, prompt[:8], 4, "adapter")]
    assert second.events == [BlockStored(hashes[2:4], hashes[1], prompt[8:16], 4, "adapter")]
    assert (first.seq, second.seq) == (0, 1)


def test_steps_that_change_nothing_say_nothing() -> None:
    driver = Driver()
    feed, publisher = told(driver)
    driver.add("a", 3, max_tokens=1)
    driver.run()
    feed.step()
    assert publisher.take() == []


def test_a_reset_is_one_event_and_voids_what_was_not_published_yet() -> None:
    driver = Driver()
    feed, publisher = told(driver)
    driver.add("a", 12, max_tokens=1)
    driver.run()
    assert driver.scheduler.reset_prefix_cache()
    feed.reset()
    [batch] = publisher.take()
    assert batch.events == [AllBlocksCleared()]


def test_a_reader_that_missed_a_batch_knows_too_little_and_nothing_false() -> None:
    driver = Driver(num_blocks=12)
    feed, publisher = told(driver, max_queue_size=2)
    index = PrefixIndex()
    for number in range(8):
        driver.add(f"r{number}", 16, max_tokens=1)
        driver.run()
        feed.step()
        if number % 3 == 2:
            for batch in publisher.take():
                index.apply(batch)
            assert index.hashes and index.hashes <= driver.scheduler.kv.pool.cached.keys()
    assert index.num_missed > 0
    with pytest.raises(ValueError, match="once each, in order"):
        index.apply(KVEventBatch(0, 0.0))


def test_a_file_gives_back_what_was_written_and_leaves_out_a_line_that_is_not_whole(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    publisher = FilePublisher(path)
    batches = [
        KVEventBatch(
            0, 1.5, [BlockStored([b"\x00h1", b"h2"], None, [1, 2], 1, "lora"), BlockRemoved([b"h0"])]
        ),
        KVEventBatch(1, 2.5, [BlockStored([b"h3"], b"h2", [3], 1, None), AllBlocksCleared()]),
    ]
    for batch in batches:
        publisher.publish(batch)
        assert list(read_batches(path))[-1] == batch, "readable while the engine goes on"
    publisher.close()
    with open(path, "a") as file:
        file.write('{"seq": 2, "ts"')
    assert list(read_batches(path)) == batches
    with pytest.raises(ConfigError, match="cannot create .* name a file that does not exist"):
        FilePublisher(path)


def test_a_publisher_that_fails_ends_the_feed_and_not_the_engine() -> None:
    class FullDisk(MemoryPublisher):
        def publish(self, batch: KVEventBatch) -> None:
            raise OSError("no space left on device")

    driver = Driver()
    feed = KVEventFeed(driver.scheduler, FullDisk(1))
    driver.add("a", 12)
    driver.step()
    feed.step()
    assert driver.scheduler.kv.pool.on_event is None
    driver.run()
    assert driver.finish_reason("a") == "length"


def test_a_trace_and_a_feed_listen_to_one_pool_and_leave_one_by_one(tmp_path: Path) -> None:
    driver = Driver()
    pool = driver.scheduler.kv.pool
    with TraceWriter(tmp_path / "t.trace", {}, driver.scheduler) as tracer:
        feed, publisher = told(driver)
        driver.add("a", 12)
        driver.step()
        feed.step()
        assert len(publisher.take()) == 1
        assert [kind for kind, *_ in tracer._events].count("seal") == 3
        assert isinstance(pool.on_event, FanOut)
    assert pool.on_event == feed._on_event, "alone again, without a detour"
    feed.close()
    feed.close()
    assert pool.on_event is None


def test_listeners_are_told_in_the_order_in_which_they_came() -> None:
    pool, heard = BlockPool(3), []
    listeners = [lambda *event, name=name: heard.append(name) for name in "abc"]
    for listener in listeners:
        add_listener(pool, listener)
    pool.take(1)
    remove_listener(pool, listeners[1])
    remove_listener(pool, listeners[1])
    pool.take(1)
    assert heard == ["a", "b", "c", "a", "c"]


@pytest.mark.parametrize(
    "value, message",
    [
        ("{", "not valid JSON"),
        ("[]", "must be like"),
        ({"publisher": "nats"}, "memory, file, zmq, got 'nats'"),
        ({"publisher": "zmq", "endpoint": "127.0.0.1:5557"}, "endpoint must be like tcp://"),
        ({"publisher": "zmq", "replay_endpoint": "udp://x"}, "replay_endpoint must be like tcp://"),
        ({"publisher": "file"}, "needs a path"),
        ({"path": "x"}, "no other takes one"),
        ({"publishr": "file"}, "did you mean 'publisher'"),
        ({"max_queue_size": 0}, "at least 1"),
        ({"enable_kv_cache_events": "yes"}, "true or false"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        KVEventsConfig.from_args(value)


def test_a_configuration_may_be_json_and_may_say_no() -> None:
    assert KVEventsConfig.from_args('{"publisher": "file", "path": "x"}') == KVEventsConfig("file", "x")
    assert KVEventsConfig.from_args({"enable_kv_cache_events": False}) is None
    assert KVEventsConfig.from_args(None) is None


def routed_hits(*, exact: bool) -> tuple[int, int]:
    """(cached tokens, requests sent after a prefix that was not there) of 240 requests of 12 conversations, over three
    replicas whose caches are reset at times."""
    rng = random.Random(0)
    drivers = [Driver(num_blocks=60) for _ in range(3)]
    feeds = [told(driver) for driver in drivers]
    indexes = [PrefixIndex() for _ in drivers]
    router = PrefixRouter(3, indexes=indexes if exact else None)
    hits = num_wrong = 0
    for number in range(60):
        placed = []
        for chat in rng.sample(range(12), 4):
            request = make_request(f"{number}-{chat}", [1000 * chat + i for i in range(40)])
            drivers[0].scheduler.kv.hasher.extend(request)  # the same hashes in every replica
            num_by_prefix = sum(router.num_by_prefix)
            replica = router.route(request.block_hashes)
            expects_hit = sum(router.num_by_prefix) > num_by_prefix
            drivers[replica].scheduler.add(request)
            placed.append((replica, request.request_id, expects_hit))
        for driver, (feed, publisher), index in zip(drivers, feeds, indexes, strict=True):
            driver.run()
            if rng.random() < 0.1 and driver.scheduler.reset_prefix_cache():
                feed.reset()
            feed.step()
            for batch in publisher.take():
                index.apply(batch)
        for replica, request_id, expects_hit in placed:
            router.finish(replica)
            num_cached = drivers[replica].outputs[request_id][-1].num_cached_tokens
            hits += num_cached
            num_wrong += expects_hit and not num_cached
    return hits, num_wrong


def test_a_router_that_is_told_is_rarely_wrong_and_finds_as_much_as_one_that_guesses() -> None:
    """Guessing finds no less here: a conversation sent to where it was forgotten is computed there, as anywhere."""
    (guessed, wrong_guesses), (known, wrong) = routed_hits(exact=False), routed_hits(exact=True)
    assert known > 0.95 * guessed > 0
    assert wrong < wrong_guesses / 2, (wrong, wrong_guesses)


def test_a_router_needs_an_index_for_each_replica() -> None:
    with pytest.raises(ConfigError, match="1 index for 2 replicas"):
        PrefixRouter(2, indexes=[PrefixIndex()])

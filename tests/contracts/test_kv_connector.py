"""Contract of KV connectors: transfer blocks by hash, complete or not at all, and end every transfer once.

No engine is needed: two caches of random bytes, and the halves of a connector between them. Your connector
is made with an empty `kv_connector_extra_config` on both sides.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import KVTransferConfig
from engine.core.connector import BlockTransfer, KVIdentity
from engine.core.hashing import BlockHasher
from engine.core.request import Request, RequestStatus
from engine.transfer import connector_class
from engine.transfer.blocks import KVBlocks
from engine.transfer.shared_memory import SharedMemoryConnector
from engine.transfer.tcp import TCPConnector
from tests.core.driver import make_request
from tests.waiting import wait_until

BLOCK_SIZE = 4
SHAPE = (2, 2, 2, BLOCK_SIZE, 8)
IDENTITY = KVIdentity("a model", "float32", SHAPE, 4 * 2 * 2 * 2 * BLOCK_SIZE * 8)
PATIENCE_S = 60.0
PROMPT = list(range(100, 119))
NUM_FULL = len(PROMPT) // BLOCK_SIZE


@dataclass
class Side:
    """An engine's part: its cache and both halves."""

    cache: torch.Tensor
    worker: Any
    scheduler: Any

    def tell(self, loads: list[BlockTransfer] = (), saves: list[BlockTransfer] = ()) -> None:
        metadata = self.scheduler.build_connector_meta(list(loads), list(saves))
        if metadata is not None:
            metadata = pickle.loads(pickle.dumps(metadata))
            self.worker.start_load_kv(metadata)
            self.worker.save_kv(metadata)

    def collect(self, recving: int = 0, sending: int = 0) -> tuple[dict[int, int], list[int]]:
        """Collect transfers until this many loads and saves have ended."""
        received: dict[int, int] = {}
        sent: list[int] = []

        def has_ended() -> bool:
            if len(received) >= recving and len(sent) >= sending:
                return True
            ended = self.worker.get_finished(0.01)
            if ended is not None:
                assert not received.keys() & ended.finished_recving.keys(), "a load ends twice"
                received.update(ended.finished_recving)
                sent.extend(ended.finished_sending)
            return False

        wait_until(has_ended)
        assert len(set(sent)) == len(sent), "a save ends twice"
        return received, sent


class Pair:
    """A producer and a consumer."""

    def __init__(self, cls: Any, extra: dict[str, Any], identity: KVIdentity = IDENTITY) -> None:
        self.sides = []
        for role, its_identity in (("kv_producer", IDENTITY), ("kv_consumer", identity)):
            name = f"{cls.__module__}:{cls.__name__}"
            config = KVTransferConfig(name, role, extra)
            assert connector_class(config) is cls
            cache = torch.rand(12, *SHAPE)
            worker = cls.make_worker(config, its_identity, KVBlocks(cache))
            self.sides.append(Side(cache, worker, cls.make_scheduler(config, BLOCK_SIZE, worker.address)))
        self.producer, self.consumer = self.sides

    def offer(self) -> dict[str, Any] | None:
        """The producer finishes a request in blocks 3, 4, 5, ...; returns what its output takes along."""
        request = hashed("p", {"do_remote_decode": True})
        request.status = RequestStatus.FINISHED_LENGTH
        block_ids = list(range(3, 3 + NUM_FULL))
        keeps, params = self.producer.scheduler.request_finished(request, block_ids)
        assert keeps, "a request that is awaited does not keep its blocks"
        self.producer.tell(saves=[BlockTransfer(0, block_ids, request.block_hashes, params or {})])
        return params

    def load(self, params: dict[str, Any] | None) -> int:
        """The consumer loads into blocks 7, 6, 5, ...; how many came."""
        request = hashed("c", params)
        num_tokens = self.consumer.scheduler.get_num_new_matched_tokens(request, 0)
        assert num_tokens == NUM_FULL * BLOCK_SIZE
        self.consumer.scheduler.update_state_after_alloc(request, num_tokens)
        transfer = BlockTransfer(0, self.targets, request.block_hashes, params or {})
        self.consumer.tell(loads=[transfer])
        received, _ = self.consumer.collect(recving=1)
        return received[0]

    @property
    def targets(self) -> list[int]:
        return list(range(7, 7 - NUM_FULL, -1))

    def close(self) -> None:
        for side in self.sides:
            side.worker.shutdown()


def hashed(name: str, params: dict[str, Any] | None) -> Request:
    extra = None if params is None else {"kv_transfer_params": params}
    request = make_request(name, PROMPT, extra_args=extra)
    BlockHasher(BLOCK_SIZE, model_fingerprint="a model").extend(request)
    return request


@pytest.fixture(params=["shared_memory", "tcp"])
def connector(
    request: pytest.FixtureRequest, kv_connector_class: Any, tmp_path: Path
) -> tuple[Any, dict[str, Any]]:
    """The class to judge, and its extra settings."""
    if kv_connector_class is not None:
        if request.param == "tcp":
            pytest.skip("yours is judged once")
        return kv_connector_class, {}
    if request.param == "tcp":
        return TCPConnector, {"load_timeout_s": 2.0}
    return SharedMemoryConnector, {"path": str(tmp_path / "kv"), "load_timeout_s": 2.0}


@pytest.fixture
def pair(connector: tuple[Any, dict[str, Any]]) -> Iterator[Pair]:
    made = Pair(*connector)
    yield made
    made.close()


def test_blocks_arrive_as_they_were_wherever_they_lie(pair: Pair) -> None:
    assert pair.load(pair.offer()) == NUM_FULL
    for index, target in enumerate(pair.targets):
        assert torch.equal(pair.consumer.cache[target], pair.producer.cache[3 + index])


def test_no_other_block_changes(pair: Pair) -> None:
    before = [side.cache.clone() for side in pair.sides]
    pair.load(pair.offer())
    others = [index for index in range(12) if index not in pair.targets]
    assert torch.equal(pair.producer.cache, before[0])
    assert torch.equal(pair.consumer.cache[others], before[1][others])


def test_a_save_ends_once_its_blocks_were_fetched(pair: Pair) -> None:
    pair.load(pair.offer())
    _, sent = pair.producer.collect(sending=1)
    assert sent == [0]


def test_blocks_of_another_model_are_refused(connector: tuple[Any, dict[str, Any]]) -> None:
    pair = Pair(*connector, identity=replace(IDENTITY, model_fingerprint="another model"))
    before = pair.consumer.cache.clone()
    assert pair.load(pair.offer()) == 0
    assert torch.equal(pair.consumer.cache, before)
    pair.close()


def test_a_producer_that_is_gone_ends_in_recomputation(pair: Pair) -> None:
    params = pair.offer()
    pair.producer.worker.shutdown()
    assert pair.load(params) in range(NUM_FULL + 1)


def test_a_producer_looks_for_nothing_and_a_consumer_offers_nothing(pair: Pair) -> None:
    params = pair.offer()
    assert not pair.producer.scheduler.get_num_new_matched_tokens(hashed("a", params), 0)
    ended = hashed("b", {"do_remote_decode": True})
    assert pair.consumer.scheduler.request_finished(ended, [1, 2]) == (False, None)


def test_what_the_cache_has_is_not_counted(pair: Pair) -> None:
    request = hashed("c", pair.offer())
    assert pair.consumer.scheduler.get_num_new_matched_tokens(request, 2 * BLOCK_SIZE) == 2 * BLOCK_SIZE


def test_nothing_ends_where_nothing_began(pair: Pair) -> None:
    assert all(side.worker.get_finished(0.0) is None for side in pair.sides)

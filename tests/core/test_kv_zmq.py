"""KV events over real ZeroMQ sockets."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import zmq

from engine.config import ConfigError, KVEventsConfig
from engine.core.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
from engine.core.kv_zmq import END, ZmqPublisher, decode, encode


def batch(seq: int) -> KVEventBatch:
    stored = BlockStored([b"h1", b"h2"], b"h0", [1, 2, 3, 4], 2, "ad|/path|1", [["salt"], None])
    return KVEventBatch(seq, 1.5 + seq, [stored, BlockRemoved([b"h0"]), AllBlocksCleared()])


def as_read(sent: KVEventBatch) -> KVEventBatch:
    """The adapter travels by its name."""
    stored = BlockStored([b"h1", b"h2"], b"h0", [1, 2, 3, 4], 2, "ad", [["salt"], None])
    return KVEventBatch(sent.seq, sent.ts, [stored, *sent.events[1:]])


def test_a_batch_reads_as_it_was_written() -> None:
    assert decode((7).to_bytes(8, "big"), encode(batch(7))) == as_read(batch(7))


@pytest.mark.parametrize("style", ["0.32", "all lists", "all maps"])
def test_the_batches_of_several_versions_of_vllm_are_read(style: str) -> None:
    fields = {"block_hashes": [17, 18], "parent_block_hash": 16, "token_ids": [1, 2, 3, 4], "block_size": 2,
              "lora_id": None, "medium": "GPU", "lora_name": "ad"}  # fmt: skip
    on_host = {**fields, "medium": "CPU"}
    if style == "all lists":
        events = [["BlockStored", *fields.values()], ["BlockStored", *on_host.values()], ["AllBlocksCleared"]]
    else:
        events = [{"type": "BlockStored", **each} for each in (fields, on_host)] + [
            {"type": "AllBlocksCleared"}
        ]
    raw = {"ts": 2.5, "events": events} if style == "all maps" else [2.5, events]
    read = decode((9).to_bytes(8, "big"), msgspec.msgpack.encode(raw))
    assert read == KVEventBatch(
        9, 2.5, [BlockStored([17, 18], 16, [1, 2, 3, 4], 2, "ad"), AllBlocksCleared()]
    )


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", msgspec.msgpack.encode([1.0, [{"type": "BlockStored"}]]), b"\x90"]
)
def test_what_is_no_batch_is_an_error(payload: bytes) -> None:
    with pytest.raises(ValueError, match="no batch of KV events"):
        decode(b"\x00" * 8, payload)


def test_readers_get_every_batch_and_the_kept_ones_again(tmp_path: Path) -> None:
    config = KVEventsConfig(
        "zmq",
        endpoint=f"ipc://{tmp_path}/e",
        replay_endpoint=f"ipc://{tmp_path}/r",
        buffer_steps=3,
        topic="kv",
    )
    publisher = ZmqPublisher(config)
    with zmq.Context() as context, context.socket(zmq.SUB) as sub, context.socket(zmq.DEALER) as dealer:
        for socket in (sub, dealer):
            socket.setsockopt(zmq.RCVTIMEO, 10_000)
        sub.connect(config.endpoint)
        sub.subscribe(b"kv")
        seq = 0
        while not sub.poll(20):  # until the subscription has arrived
            publisher.publish(batch(seq))
            seq += 1
        first = decode(*sub.recv_multipart()[1:]).seq
        for number in range(seq, seq + 5):
            publisher.publish(batch(number))
        last = seq + 4
        for number in range(first + 1, last + 1):
            assert decode(*sub.recv_multipart()[1:]) == as_read(batch(number))
        dealer.connect(str(config.replay_endpoint))
        for wanted, expected in (
            (0, range(last - 2, last + 1)),
            (last, range(last, last + 1)),
            (last + 1, ()),
        ):
            dealer.send_multipart([b"", wanted.to_bytes(8, "big")])
            for number in expected:
                assert decode(*dealer.recv_multipart()[1:]).seq == number
            assert dealer.recv_multipart()[1:] == [END, b""]
    publisher.close()
    publisher.close()


def test_an_address_that_is_taken_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot bind 'ipc:///nowhere/at/all'"):
        ZmqPublisher(KVEventsConfig("zmq", endpoint="ipc:///nowhere/at/all"))
    with pytest.raises(ConfigError, match="cannot bind"):
        ZmqPublisher(
            KVEventsConfig("zmq", endpoint=f"ipc://{tmp_path}/e", replay_endpoint="ipc:///nowhere/at/all")
        )

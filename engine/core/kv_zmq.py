"""Publish KV events over ZeroMQ, in vLLM's format: routers that read vLLM's events read these, and ours reads vLLM's.

    PUB     topic | number of the batch, 8 bytes | msgpack [ts, [event, ...], rank]        after every step
    ROUTER  a reader sends the first number that it missed; it gets number | batch, ..., -1 | nothing

A batch goes out inside the step: a PUB socket drops what a slow reader does not take, which that reader sees as a gap.
The engine binds both addresses, readers connect. Source: ZmqEventPublisher in vLLM distributed/kv_events.py.
Needs `pip install pyzmq msgspec` (extra `serve`).
"""

from __future__ import annotations

import importlib.util
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from engine.config.features import KVEventsConfig
from engine.config.settings import ConfigError
from engine.core.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    FilePublisher,
    KVCacheEvent,
    KVEventBatch,
    MemoryPublisher,
    Publisher,
)

END = (-1).to_bytes(8, "big", signed=True)
"""Number after the last batch of a replay."""
FIELDS = {
    "BlockStored": (
        "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys",
    ),
    "BlockRemoved": ("block_hashes", "medium"),
    "AllBlocksCleared": (),
}  # fmt: skip
"""Order of the fields in versions of vLLM that send events as lists."""
POLL_MS = 100


class ZmqPublisher:
    """Sends every batch to all readers, and the last ones again on request."""

    def __init__(self, config: KVEventsConfig) -> None:
        """Raises ConfigError if a library is missing or an address cannot be bound."""
        if missing := [name for name in ("zmq", "msgspec") if importlib.util.find_spec(name) is None]:
            raise ConfigError(
                f"kv_events_config: publisher 'zmq' needs {' and '.join(missing)}: pip install -e '.[serve]'"
            )
        import zmq

        self._topic = config.topic.encode()
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=config.buffer_steps)
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._replaying: threading.Thread | None = None
        self._context = zmq.Context()
        try:
            self._pub = self._socket(zmq.PUB, config.endpoint, config.hwm)
            if config.replay_endpoint is not None:
                router = self._socket(zmq.ROUTER, config.replay_endpoint, 0)
                self._replaying = threading.Thread(target=self._replay, args=(router,), daemon=True)
                self._replaying.start()
        except ConfigError:
            self._context.destroy(linger=0)
            raise

    def _socket(self, kind: int, endpoint: str, hwm: int) -> Any:
        import zmq

        socket = self._context.socket(kind)
        socket.set_hwm(hwm)
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            raise ConfigError(
                f"kv_events_config: cannot bind {endpoint!r} ({error}); give an address like tcp://127.0.0.1:5557 "
                "that no other process has"
            ) from None
        return socket

    def publish(self, batch: KVEventBatch) -> None:
        number, payload = batch.seq.to_bytes(8, "big"), encode(batch)
        with self._lock:
            self._kept.append((number, payload))
        self._pub.send_multipart((self._topic, number, payload))

    def _replay(self, router: Any) -> None:
        import zmq

        while not self._closing.is_set():
            with suppress(zmq.ZMQError):  # the reader is gone
                if router.poll(POLL_MS):
                    sender, *_, first = router.recv_multipart()
                    with self._lock:
                        kept = list(self._kept)
                    for number, payload in (*(pair for pair in kept if pair[0] >= first), (END, b"")):
                        router.send_multipart((sender, b"", number, payload))
        router.close(linger=0)

    def close(self) -> None:
        """Stop. Batches that are still under way have a moment to leave. A second call does nothing."""
        self._closing.set()
        if self._replaying is not None:
            self._replaying.join()
        self._context.destroy(linger=POLL_MS)


def publisher_of(config: KVEventsConfig) -> Publisher:
    """Return the publisher that the configuration names."""
    if config.publisher == "zmq":
        return ZmqPublisher(config)
    if config.path is None:
        return MemoryPublisher(config.max_queue_size)
    return FilePublisher(config.path)


def encode(batch: KVEventBatch) -> bytes:
    """Return a batch as vLLM 0.32 encodes it; its number travels beside it."""
    import msgspec

    return msgspec.msgpack.encode([batch.ts, [_as_map(event) for event in batch.events], None])


def _as_map(event: KVCacheEvent) -> dict[str, Any]:
    fields: dict[str, Any] = {"type": type(event).__name__}
    if isinstance(event, BlockStored):
        extra = event.extra_keys
        if event.lora_name is not None:  # vLLM's come first in every block
            extra = [[event.lora_name, *(keys or [])] for keys in extra or [None] * len(event.block_hashes)]
        return fields | {
            "block_hashes": event.block_hashes, "parent_block_hash": event.parent_block_hash,
            "token_ids": event.token_ids, "block_size": event.block_size, "lora_id": None, "medium": "GPU",
            "lora_name": event.lora_name, "extra_keys": extra,
        }  # fmt: skip
    return fields | (
        {"block_hashes": event.block_hashes, "medium": "GPU"} if isinstance(event, BlockRemoved) else {}
    )


def decode(number: bytes, payload: bytes) -> KVEventBatch:
    """Return a batch of ours or of any version of vLLM, without the blocks of other media than the device.

    Hashes of vLLM may be integers. Raises ValueError for anything else.
    """
    import msgspec

    try:
        raw = msgspec.msgpack.decode(payload)
        ts, events = (raw["ts"], raw["events"]) if isinstance(raw, dict) else raw[:2]
        return KVEventBatch(int.from_bytes(number, "big"), float(ts), list(_events(events)))
    except (msgspec.DecodeError, KeyError, TypeError, IndexError, ValueError) as error:
        raise ValueError(f"no batch of KV events: {error}") from None


def _events(raw: list[Any]) -> Iterator[KVCacheEvent]:
    for event in raw:
        if not isinstance(event, dict):
            event = {"type": event[0], **dict(zip(FIELDS[event[0]], event[1:], strict=False))}
        if event.get("medium") not in (None, "GPU") or event.get("group_idx"):
            continue  # a copy elsewhere, or another group of layers with the same tokens
        if event["type"] == "AllBlocksCleared":
            yield AllBlocksCleared()
        elif event["type"] == "BlockRemoved":
            yield BlockRemoved(list(event["block_hashes"]))
        elif event["type"] == "BlockStored":
            name, extra = event.get("lora_name"), event.get("extra_keys")
            if name is not None and extra is not None:
                extra = [keys[1:] or None for keys in extra]
            yield BlockStored(
                list(event["block_hashes"]), event["parent_block_hash"], list(event["token_ids"]),
                int(event["block_size"]), name, extra if extra is not None and any(extra) else None,
            )  # fmt: skip

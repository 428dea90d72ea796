"""KV between engines over TCP: the decode engine fetches blocks that the prefill engine keeps for it.

    decode engine                                   prefill engine
      {"fetch": handle, identity, hashes}  ------>    finds the promise (waits briefly if it is not there yet)
                                           <------  {"blocks": n} or {"error": why}
                                           <------  n packets (engine/transfer/blocks.py)
      connection closed                    ------>    the promise is fulfilled: its blocks are freed

The reader pulls when it has room, as in vLLM's NIXL connector (kv_connector/v1/nixl). A promise is fulfilled once. It
ends when its reader disconnects, with or without all blocks; when the reader needs nothing ({"release": handle}); or
after `send_timeout_s`.

Peers trust each other: this engine connects to the address in `kv_transfer_params`, so those params must come from
your router, never from a client. The checksum detects damage, not malice.
"""

from __future__ import annotations

import json
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from engine.config import ConfigError, KVTransferConfig
from engine.core.connector import BlockTransfer, KVConnectorMetadata, KVIdentity
from engine.transfer.background import BackgroundConnector
from engine.transfer.blocks import HEADER_BYTES, KVBlocks, TransferError, check, pack_header
from engine.transfer.handoff import HandoffScheduler

logger = logging.getLogger(__name__)

_LENGTH = struct.Struct("<4sI")
_MESSAGE_MAGIC = b"PKVM"
_MAX_MESSAGE = 16 << 20
_GRACE_S = 1.0
"""Longest wait of a server for an unknown promise: the reader may be faster than the next step."""

_LOOK_UP_S = 0.1
"""Interval at which a thread that waits for its peer checks whether this engine shuts down."""


@dataclass(frozen=True)
class TCPOptions:
    host: str = "127.0.0.1"
    """Address that this engine listens on and sends to other engines."""
    port: int = 0
    """0: any free port."""
    load_timeout_s: float = 5.0
    """Maximum time of a load, connecting included; blocks missing then are recomputed."""
    send_timeout_s: float = 60.0
    """Maximum time for which blocks are kept for a reader, and for which a reader may stall."""


class TCPConnector(BackgroundConnector):
    """Fetch loads from the address in their params; a producer also serves saved blocks."""

    options_class = TCPOptions
    positive = ("load_timeout_s", "send_timeout_s")

    @classmethod
    def parse(cls, config: KVTransferConfig) -> Any:
        options = super().parse(config)
        if not 0 <= options.port < 65536:
            raise ConfigError(f"TCPConnector: port must be 0 to 65535, got {options.port}")
        return options

    @classmethod
    def make_scheduler(
        cls, config: KVTransferConfig, block_size: int, address: dict[str, Any]
    ) -> HandoffScheduler:
        return HandoffScheduler(config, block_size, address)

    def __init__(self, config: KVTransferConfig, identity: KVIdentity, blocks: KVBlocks) -> None:
        super().__init__(config, identity, blocks)
        self._server = BlockServer(self) if config.is_producer else None
        if self._server is not None:
            self.address |= {"remote_host": self.options.host, "remote_port": self._server.port}

    def start_load_kv(self, metadata: KVConnectorMetadata) -> None:
        super().start_load_kv(metadata)
        for params in metadata.releases:
            self._threads.submit(self._release, params)

    def save_kv(self, metadata: KVConnectorMetadata) -> None:
        for transfer in self.unknown(metadata.saves):
            self.begin(transfer, None)
            if self._server is None:
                self.end_send(transfer.transfer_id, 0)
            else:
                self._server.promise(transfer)

    def get_finished(self, timeout_s: float) -> Any:
        if self._server is not None:
            self._server.drop_overdue()
        return super().get_finished(timeout_s)

    def shutdown(self) -> None:
        self.closing.set()
        if self._server is not None:
            self._server.close()
        super().shutdown()

    def receive(self, transfer: BlockTransfer) -> Iterator[bytearray]:
        deadline = time.monotonic() + self.options.load_timeout_s
        with self._connected(transfer.params, deadline) as stream:
            hashes = [block_hash.hex() for block_hash in transfer.block_hashes]
            handle = transfer.params.get("remote_handle")
            stream.send_message({"fetch": handle, "identity": self.identity.hex(), "hashes": hashes})
            answer = stream.receive_message()
            if "error" in answer:
                raise TransferError(f"the peer refuses: {answer['error']}")
            for block_hash in transfer.block_hashes[: answer.get("blocks", 0)]:
                header = stream.receive_exactly(HEADER_BYTES)
                content = stream.receive_exactly(self.blocks.block_bytes)
                check(header, content, self.identity, block_hash)
                yield content
            if answer.get("blocks") != len(transfer.block_hashes):
                raise TransferError("the peer has not got them all")

    def _release(self, params: dict[str, Any]) -> None:
        try:
            with self._connected(params, time.monotonic() + self.options.load_timeout_s) as stream:
                stream.send_message({"release": params.get("remote_handle")})
                stream.receive_message()
        except (TransferError, OSError) as error:
            logger.debug("a prefill engine could not be told to let go: %s; it will in time", error)

    @contextmanager
    def _connected(self, params: dict[str, Any], deadline: float) -> Iterator[_Stream]:
        host, port = params.get("remote_host"), params.get("remote_port")
        if not isinstance(host, str) or not isinstance(port, int):
            raise TransferError("kv_transfer_params have no remote_host and remote_port")
        try:
            connection = socket.create_connection((host, port), max(0.001, deadline - time.monotonic()))
        except OSError as error:
            raise TransferError(f"no connection to {host}:{port}: {error}") from error
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield _Stream(connection, deadline, self.closing)


@dataclass(eq=False)
class _Promise:
    transfer: BlockTransfer
    deadline: float
    num_readers: int = 0
    num_bytes: int = 0


class BlockServer:
    """Serve each reader in its own thread."""

    def __init__(self, worker: TCPConnector) -> None:
        self._options = options = worker.options
        self._worker = worker
        self._changed = threading.Condition()
        self._promises: dict[str, _Promise] = {}
        try:
            self._socket = socket.create_server((options.host, options.port))
        except OSError as error:
            raise ConfigError(
                f"TCPConnector cannot listen on {options.host}:{options.port}: {error.strerror}; name another "
                "host or port in kv_connector_extra_config, or leave port out"
            ) from error
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, name="prep-kv-server", daemon=True).start()

    def promise(self, transfer: BlockTransfer) -> None:
        """Keep blocks for the reader with the handle."""
        deadline = time.monotonic() + self._options.send_timeout_s
        with self._changed:
            self._promises[transfer.params["remote_handle"]] = _Promise(transfer, deadline)
            self._changed.notify_all()

    def drop_overdue(self) -> None:
        """Free blocks whose reader has not come in time."""
        now = time.monotonic()
        with self._changed:
            overdue = [name for name, kept in self._promises.items() if kept.deadline < now]
        for handle in overdue:
            seconds = self._options.send_timeout_s
            logger.warning("no reader fetched KV blocks within %g s: they are freed", seconds)
            self._end(handle)

    def close(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept()
        except OSError:
            pass  # macOS: close is enough
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=[connection], name="prep-kv-send", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """Serve one reader."""
        deadline = time.monotonic() + self._options.send_timeout_s
        with connection:
            try:
                stream = _Stream(connection, deadline, self._worker.closing)
                question = stream.receive_message()
                if "release" in question:
                    self._end(str(question["release"]))
                    stream.send_message({"released": True})
                else:
                    self._answer(stream, question)
            except (TransferError, OSError) as error:
                logger.warning("sending KV blocks ended early: %s", error)
            except Exception:
                logger.exception("sending KV blocks failed")

    def _answer(self, stream: _Stream, question: dict[str, Any]) -> None:
        if question.get("identity") != self._worker.identity.hex():
            stream.send_message({"error": "another model, KV type or block shape"})
            return
        try:
            handle, hashes = str(question["fetch"]), [bytes.fromhex(name) for name in question["hashes"]]
        except (KeyError, TypeError, ValueError) as error:
            raise TransferError(f"a reader sent an invalid request: {error!r}") from error
        with self._changed:
            self._changed.wait_for(lambda: handle in self._promises, _GRACE_S)
            if (promise := self._promises.get(handle)) is not None:
                promise.num_readers += 1
        if promise is None:
            stream.send_message({"error": "no blocks are kept under this handle, or not any more"})
            return
        try:
            self._send(stream, promise, hashes)
            stream.wait_for_close()
        finally:
            with self._changed:
                promise.num_readers -= 1
            self._end(handle)

    def _send(self, stream: _Stream, promise: _Promise, hashes: list[bytes]) -> None:
        transfer = promise.transfer
        block_of = dict(zip(transfer.block_hashes, transfer.block_ids, strict=True))
        known = list(takewhile(block_of.__contains__, hashes))
        stream.send_message({"blocks": len(known)})
        for block_hash in known:
            content = self._worker.blocks.read(block_of[block_hash])
            stream.send(pack_header(self._worker.identity, block_hash, content))
            stream.send(content)
            promise.num_bytes += len(content)

    def _end(self, handle: str) -> None:
        """End the promise; free its blocks as soon as no reader uses them."""
        with self._changed:
            promise = self._promises.get(handle)
            if promise is None or promise.num_readers:
                return  # it has ended, or the last reader frees them
            del self._promises[handle]
        self._worker.end_send(promise.transfer.transfer_id, promise.num_bytes)


class _Stream:
    """A connection with one deadline for all operations, which a slow peer cannot extend."""

    def __init__(self, connection: socket.socket, deadline: float, closing: threading.Event) -> None:
        self._connection, self._deadline, self._closing = connection, deadline, closing

    def send_message(self, message: dict[str, Any]) -> None:
        text = json.dumps(message).encode()
        self.send(_LENGTH.pack(_MESSAGE_MAGIC, len(text)) + text)

    def receive_message(self) -> dict[str, Any]:
        magic, length = _LENGTH.unpack(self.receive_exactly(_LENGTH.size))
        if magic != _MESSAGE_MAGIC or length > _MAX_MESSAGE:
            raise TransferError("the peer does not speak this protocol")
        try:
            message = json.loads(self.receive_exactly(length))
        except ValueError as error:
            raise TransferError("the peer sent a message that is not JSON") from error
        if not isinstance(message, dict):
            raise TransferError("the peer sent a message that is not an object")
        return message

    def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._patiently(self._connection.send, view) :]

    def receive_exactly(self, num_bytes: int) -> bytearray:
        data = bytearray(num_bytes)
        view = memoryview(data)
        while view:
            num_read = self._patiently(self._connection.recv_into, view)
            if num_read == 0:
                raise TransferError(f"the peer hung up with {len(view)} of {num_bytes} bytes missing")
            view = view[num_read:]
        return data

    def wait_for_close(self) -> None:
        """Wait until the peer has read everything and closes the connection."""
        self._patiently(self._connection.recv, 1)

    def _patiently(self, operation: Callable[[Any], Any], argument: Any) -> Any:
        """Repeat a socket operation until it succeeds, the deadline has passed or this engine shuts down."""
        while True:
            left = self._deadline - time.monotonic()
            if left <= 0 or self._closing.is_set():
                raise TransferError("it took too long" if left <= 0 else "this engine shuts down")
            self._connection.settimeout(min(left, _LOOK_UP_S))
            try:
                return operation(argument)
            except TimeoutError:
                continue

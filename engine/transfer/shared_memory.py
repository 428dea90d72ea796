"""KV between engines of one machine: blocks as files in memory, named by their hash.

    /dev/shm/prep-kv/                a folder on tmpfs: its files are POSIX shared memory
        3f1c...9a.kv                 header and content of one block (engine/transfer/blocks.py)
        .3f1c...9a.<pid>.<n>         being written, never read

Renaming makes a complete file visible at once, and the folder is the index: no lock, no server, no repair after a
crash. Producers delete their own files, the oldest first when the folder is full and the rest at shutdown.
Source of the idea: vLLM distributed/kv_transfer/kv_connector/v1/example_connector.py (a folder of tensors).
"""

from __future__ import annotations

import logging
import os
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

from engine.config import ConfigError, KVTransferConfig
from engine.core.connector import BlockTransfer, KVConnectorMetadata, KVIdentity
from engine.transfer.background import BackgroundConnector
from engine.transfer.blocks import HEADER_BYTES, KVBlocks, TransferError, check, pack_header
from engine.transfer.handoff import HandoffScheduler

logger = logging.getLogger(__name__)

_POLL_S = 0.001


@dataclass(frozen=True)
class SharedMemoryOptions:
    path: str
    """Folder that all engines use, best on a file system in memory: /dev/shm/prep-kv."""
    capacity_bytes: int = 256 << 20
    """Maximum bytes of this engine's files there."""
    load_timeout_s: float = 5.0
    """Longest wait of a load for promised blocks that are not there yet."""


class FolderConnector(BackgroundConnector):
    """A connector whose blocks are files in a folder."""

    store: BlockStore

    def save_kv(self, metadata: KVConnectorMetadata) -> None:
        for transfer in self.unknown(metadata.saves):
            self.begin(transfer, self._save)

    def _read(self, block_hash: bytes) -> bytearray:
        header, content = self.store.read(block_hash)
        check(header, content, self.identity, block_hash)
        return content

    def _save(self, transfer: BlockTransfer) -> None:
        num_bytes, has_failed = 0, True
        try:
            for block_id, block_hash in zip(transfer.block_ids, transfer.block_hashes, strict=True):
                if self.closing.is_set():
                    break
                if not self.store.contains(block_hash):
                    content = self.blocks.read(block_id)
                    self.store.write(block_hash, pack_header(self.identity, block_hash, content), content)
                    num_bytes += len(content)
            self.store.touch(transfer.block_hashes)
            has_failed = False
        except OSError as error:
            logger.warning("KV blocks could not be saved in %s: %s", self.store.folder, error)
        except Exception:
            logger.exception("save %d failed", transfer.transfer_id)
        self.end_send(transfer.transfer_id, num_bytes, has_failed)


class SharedMemoryConnector(FolderConnector):
    """Share blocks between engines of one machine through a folder in memory."""

    options_class = SharedMemoryOptions
    positive = ("capacity_bytes", "load_timeout_s")

    def __init__(self, config: KVTransferConfig, identity: KVIdentity, blocks: KVBlocks) -> None:
        super().__init__(config, identity, blocks)
        self.store = BlockStore(Path(self.options.path), self.options.capacity_bytes)
        self.store.create()

    @classmethod
    def make_scheduler(
        cls, config: KVTransferConfig, block_size: int, address: dict[str, Any]
    ) -> HandoffScheduler:
        store = BlockStore(Path(cls.parse(config).path))
        return HandoffScheduler(config, block_size, address, contains=store.contains)

    def shutdown(self) -> None:
        super().shutdown()
        self.store.clear()

    def receive(self, transfer: BlockTransfer) -> Iterator[bytearray]:
        if transfer.params.get("remote_identity", self.identity.hex()) != self.identity.hex():
            raise TransferError("they were made by another model, KV type or block shape")
        is_promised = transfer.params.get("do_remote_prefill") is True  # else it has been deleted
        deadline = time.monotonic() + (self.options.load_timeout_s if is_promised else 0.0)
        for block_hash in transfer.block_hashes:
            while not self.store.contains(block_hash):
                if time.monotonic() > deadline or self.closing.is_set():
                    raise TransferError("they are not in the folder, or not any more")
                time.sleep(_POLL_S)
            yield self._read(block_hash)


class BlockStore:
    """A folder of blocks."""

    def __init__(self, folder: Path, capacity_bytes: int = 0) -> None:
        self.folder = folder
        self._capacity_bytes = capacity_bytes
        self._lock = Lock()
        self._own: OrderedDict[Path, int] = OrderedDict()
        """Bytes of each file written by this engine, oldest first."""
        self._num_bytes = 0
        self._numbers = count()

    def create(self) -> None:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"SharedMemoryConnector cannot use the folder {self.folder}: {error.strerror}; name another "
                "one in kv_connector_extra_config['path']"
            ) from error

    def contains(self, block_hash: bytes) -> bool:
        return self._path(block_hash).exists()

    def read(self, block_hash: bytes) -> tuple[bytes, bytearray]:
        """Return header and content, unchecked. Raises OSError if the file is gone."""
        with self._path(block_hash).open("rb", buffering=0) as file:
            header = file.read(HEADER_BYTES)
            content = bytearray(max(0, os.fstat(file.fileno()).st_size - HEADER_BYTES))
            num_read = file.readinto(content)
        return header, content[:num_read]

    def write(self, block_hash: bytes, header: bytes, content: bytes) -> None:
        """Write a block and make it visible; delete the oldest if needed. Raises OSError if the disk is full."""
        path = self._path(block_hash)
        hidden = self.folder / f".{path.stem}.{os.getpid()}.{next(self._numbers)}"
        num_bytes = len(header) + len(content)
        self._make_room(num_bytes)
        try:
            with hidden.open("wb") as file:
                file.write(header)
                file.write(content)
            hidden.rename(path)
        except OSError:
            hidden.unlink(missing_ok=True)
            raise
        self._note_written(path, num_bytes)

    def touch(self, hashes: Sequence[bytes]) -> None:
        """Note that a prefix was used; here files are deleted in the order of writing."""

    def clear(self) -> None:
        """Delete this engine's files, and the folder if it is empty then."""
        self._make_room(self._capacity_bytes)  # reserve the maximum
        try:
            self.folder.rmdir()
        except OSError:
            pass  # other engines still use it

    def _note_written(self, path: Path, num_bytes: int) -> None:
        with self._lock:
            self._num_bytes += num_bytes - self._own.pop(path, 0)
            self._own[path] = num_bytes

    def _make_room(self, num_bytes: int) -> None:
        with self._lock:
            while self._own and self._num_bytes + num_bytes > self._capacity_bytes:
                path, size = self._own.popitem(last=False)
                self._num_bytes -= size
                path.unlink(missing_ok=True)

    def _path(self, block_hash: bytes) -> Path:
        return self.folder / f"{block_hash.hex()}.kv"

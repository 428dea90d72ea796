"""The disk tier: KV blocks of finished requests as files, reused by later requests and later engines.

    <path>/<model, KV type and shape>/3f1c...9a.kv     header with checksum, and one block's bytes (blocks.py)

The disk is a KV connector without a second engine. A request waits (Reason.KV_TRANSFER) while a thread reads its
blocks, so a slow disk never delays a step. Missing, truncated or damaged blocks are recomputed.

A block is named by its hash, which covers the model's fingerprint and every token before it, so the folder is the
index. It outlives the engine, and several engines may share it. Above `capacity_bytes` the least recently used files
are deleted, the end of a prefix before its start.

Sources: vLLM v1/kv_offload/tiering/fs, kv_connector/v1/example_connector.py; LMCache (arXiv 2510.09665).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config import ConfigError, KVTransferConfig
from engine.core.connector import BlockTransfer, KVIdentity
from engine.transfer.blocks import KVBlocks, TransferError
from engine.transfer.handoff import HandoffScheduler
from engine.transfer.shared_memory import BlockStore, FolderConnector

logger = logging.getLogger(__name__)

_FILL = 0.9
"""Share of the capacity that stays in use after deletions, since listing the folder is slow."""
_ORPHAN_AGE_S = 3600.0
"""Age at which a temporary file counts as left by a dead engine."""


@dataclass(frozen=True)
class DiskOptions:
    path: str
    """Folder; created if it does not exist."""
    capacity_bytes: int = 4 << 30
    """Maximum size of the folder, over all models and engines that use it."""


class DiskConnector(FolderConnector):
    """`kv_transfer_config={"kv_connector": "DiskConnector", "kv_connector_extra_config": {"path": ...}}`."""

    options_class = DiskOptions
    positive = ("capacity_bytes",)
    store: DiskStore

    def __init__(self, config: KVTransferConfig, identity: KVIdentity, blocks: KVBlocks) -> None:
        super().__init__(config, identity, blocks)
        self.store = DiskStore(self.options, self.identity.hex())
        self.store.create()

    @classmethod
    def make_scheduler(
        cls, config: KVTransferConfig, block_size: int, address: dict[str, Any]
    ) -> HandoffScheduler:
        store = DiskStore(cls.parse(config), address["remote_identity"])
        return HandoffScheduler(config, block_size, address, contains=store.contains, source="disk")

    def shutdown(self) -> None:
        """Finish running saves: the next engine uses them."""
        self._threads.shutdown(wait=True)
        super().shutdown()

    def receive(self, transfer: BlockTransfer) -> Iterator[bytearray]:
        try:
            for block_hash in transfer.block_hashes:
                try:
                    yield self._read(block_hash)
                except TransferError:
                    self.store.delete(block_hash)  # else every later request would wait for it too
                    raise
        finally:
            self.store.touch(transfer.block_hashes)


class DiskStore(BlockStore):
    """A folder of blocks that outlives its engine, with one size limit for all engines that write to it."""

    def __init__(self, options: DiskOptions, identity: str) -> None:
        """identity: hex digest of `KVIdentity`; blocks with another one are never read."""
        self.root = Path(options.path).expanduser()
        super().__init__(self.root / identity[:16], options.capacity_bytes)

    def create(self) -> None:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            probe = self.folder / f".{os.getpid()}.probe"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise ConfigError(
                f"the disk tier cannot write to {self.folder}: {error.strerror}; name another folder "
                "(kv_offloading_backend='disk:FOLDER')"
            ) from error
        self._num_bytes = sum(size for _, size, _ in self._files())

    def contains(self, block_hash: bytes) -> bool:
        return os.path.exists(self._path(block_hash))  # also False if the folder has become unreadable

    def delete(self, block_hash: bytes) -> None:
        """Delete a block; ignore errors."""
        try:
            self._path(block_hash).unlink(missing_ok=True)
        except OSError as error:
            logger.warning("a damaged KV block cannot be deleted: %s", error)

    def touch(self, hashes: Sequence[bytes]) -> None:
        """Mark a prefix as used, its start last, since it is reachable only from there."""
        now = time.time_ns()
        for age, block_hash in enumerate(hashes):
            try:
                os.utime(self._path(block_hash), ns=(now - age, now - age))
            except OSError:
                continue  # deleted, or owned by another user

    def clear(self) -> None:
        """Keep the files for the next engine."""

    def _make_room(self, num_bytes: int) -> None:
        with self._lock:
            self._num_bytes += num_bytes
            if self._num_bytes <= self._capacity_bytes:
                return
            files = sorted(self._files())
            self._num_bytes = num_bytes + sum(size for _, size, _ in files)  # other engines write here too
            for _, size, path in files:
                if self._num_bytes <= self._capacity_bytes * _FILL:
                    break
                Path(path).unlink(missing_ok=True)
                self._num_bytes -= size

    def _note_written(self, path: Path, num_bytes: int) -> None:
        """Do nothing: `_make_room` has counted the file."""

    def _files(self) -> Iterator[tuple[int, int, str]]:
        """Return (time of last use, bytes, path) of the blocks of all models; delete files of dead engines."""
        for path in self.root.glob("*/*"):
            try:
                stat = path.stat()
                if not path.name.startswith("."):
                    yield stat.st_mtime_ns, stat.st_size, str(path)
                elif time.time() - stat.st_mtime > _ORPHAN_AGE_S:
                    path.unlink()
            except OSError:
                continue  # another engine was faster

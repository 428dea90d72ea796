"""Base of connectors: checked settings, and a worker half whose transfers run in threads.

    step n     start_load_kv -> | thread: receive, verify, write ... |
    step n+1   get_finished -> nothing yet                           |
    step n+5   get_finished -> {transfer: 3 good blocks}  <----------+

A transfer always ends: after an error with the blocks that were received until then.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from math import isfinite
from typing import Any, ClassVar, Self

from engine.config import ConfigError, KVTransferConfig
from engine.config.settings import check_names
from engine.core.connector import BlockTransfer, KVConnectorMetadata, KVConnectorOutput, KVIdentity
from engine.transfer.blocks import KVBlocks, TransferError

logger = logging.getLogger(__name__)

NUM_THREADS = 4
"""Maximum loads at a time, and likewise saves; others are queued."""


class BackgroundConnector(ABC):
    """The worker half: threads, and a mailbox for their reports. A subclass receives and saves blocks."""

    options_class: ClassVar[type]
    """Dataclass of the settings in `kv_connector_extra_config`."""
    positive: ClassVar[tuple[str, ...]]
    """Settings that must be above zero."""

    @classmethod
    def check_config(cls, config: KVTransferConfig) -> None:
        """Raise ConfigError for unknown names, wrong types and numbers out of range."""
        cls.parse(config)

    @classmethod
    def parse(cls, config: KVTransferConfig) -> Any:
        name, given = config.kv_connector, config.kv_connector_extra_config
        check_names(given, cls.options_class, f"{name} has no setting")
        for field in fields(cls.options_class):
            if field.name in given and not _fits(given[field.name], str(field.type)):
                raise ConfigError(f"{name}: {field.name} must be {field.type}, got {given[field.name]!r}")
        try:
            options = cls.options_class(**given)
        except TypeError as error:
            raise ConfigError(f"{name} needs more in kv_connector_extra_config: {error}") from error
        for setting in cls.positive:
            if (value := getattr(options, setting)) <= 0:
                raise ConfigError(f"{name}: {setting} must be greater than 0, got {value}")
        return options

    @classmethod
    def make_worker(cls, config: KVTransferConfig, identity: KVIdentity, blocks: KVBlocks) -> Self:
        return cls(config, identity, blocks)

    def __init__(self, config: KVTransferConfig, identity: KVIdentity, blocks: KVBlocks) -> None:
        self.options = self.parse(config)
        self.identity = identity.digest
        self.address: dict[str, Any] = {"remote_identity": self.identity.hex()}
        self.blocks = blocks
        self.closing = threading.Event()
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="prep-kv")
        self._mailbox = threading.Condition()
        self._ended = KVConnectorOutput()
        self._pending: set[int] = set()
        """Transfers not yet reported."""
        self._begun: deque[int] = deque(maxlen=1000)

    # Defined by a connector

    @abstractmethod
    def receive(self, transfer: BlockTransfer) -> Iterator[bytearray]:
        """Yield the load's blocks in order, each verified. Raises TransferError or OSError to end early."""

    # Called by the worker

    def get_finished(self, timeout_s: float) -> KVConnectorOutput | None:
        with self._mailbox:
            if self._pending and not self._has_mail() and timeout_s > 0:
                self._mailbox.wait(timeout_s)
            if not self._has_mail():
                return None
            ended, self._ended = self._ended, KVConnectorOutput()
            return ended

    def start_load_kv(self, metadata: KVConnectorMetadata) -> None:
        for transfer in self.unknown(metadata.loads):
            self.begin(transfer, self._load)

    def shutdown(self) -> None:
        self.closing.set()
        self._threads.shutdown(wait=True, cancel_futures=True)

    # For connectors

    def unknown(self, transfers: list[BlockTransfer]) -> list[BlockTransfer]:
        """Return the transfers that an interrupted step has not started already."""
        return [transfer for transfer in transfers if transfer.transfer_id not in self._begun]

    def begin(self, transfer: BlockTransfer, job: Callable[[BlockTransfer], None] | None) -> None:
        """Register a transfer; `job`, if given, runs it in a thread."""
        with self._mailbox:
            self._pending.add(transfer.transfer_id)
            self._begun.append(transfer.transfer_id)
        if job is not None:
            self._threads.submit(job, transfer)

    def end_send(self, transfer_id: int, num_bytes: int, has_failed: bool = False) -> None:
        with self._mailbox:
            self._pending.discard(transfer_id)
            self._ended.finished_sending.append(transfer_id)
            self._ended.num_bytes_sent += num_bytes
            self._ended.num_save_failures += has_failed
            self._mailbox.notify_all()

    def _load(self, transfer: BlockTransfer) -> None:
        num_good, wanted = 0, len(transfer.block_ids)
        problem = ""
        try:
            for content in self.receive(transfer):
                self.blocks.write(transfer.block_ids[num_good], content)
                num_good += 1
        except (TransferError, OSError) as error:
            problem = str(error) or type(error).__name__
        except Exception:
            problem = "an error in the connector"
            logger.exception("load %d failed", transfer.transfer_id)
        if num_good < wanted and not self.closing.is_set():
            logger.warning("%d of %d KV blocks did not come: %s", wanted - num_good, wanted, problem)
        with self._mailbox:
            self._pending.discard(transfer.transfer_id)
            self._ended.finished_recving[transfer.transfer_id] = num_good
            self._ended.num_bytes_received += num_good * self.blocks.block_bytes
            self._mailbox.notify_all()

    def _has_mail(self) -> bool:
        return bool(self._ended.finished_recving or self._ended.finished_sending)


def _fits(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return False
    if kind == "float":
        return isinstance(value, (int, float)) and isfinite(value)
    return isinstance(value, {"int": int, "str": str}[kind])

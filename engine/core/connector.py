"""The seam through which KV leaves one engine and enters another.

A connector has two halves, because scheduler and worker may live in different processes:

                 engine A (prefill)                              engine B (decode)
      scheduler half | worker half                     worker half | scheduler half
                     |                                             |
    request_finished |                                             | get_num_new_matched_tokens
     "keep 3 blocks" | save_kv  ---- blocks, by hash ---->  start_load_kv | "3 blocks are over there"
     release blocks <- get_finished                  get_finished -> publish blocks: now a prefix hit

Equal hashes mean equal KV (`engine/core/hashing.py`), so blocks that arrive join the prefix cache, and the request that
waited for them starts behind a longer hit. Blocks that do not arrive, or arrive damaged, are never published: the
request computes them.

Simpler than vLLM's KVConnectorBase_V1 (distributed/kv_transfer/kv_connector/v1/base.py) in two ways. A request waits
outside the batch until its blocks are there, and a finished one keeps its blocks until they are sent, so no forward
pass waits layer by layer. And each block can be verified alone. Prefill is split from decode as in DistServe (OSDI
2024, section 3) and Splitwise (ISCA 2024, section 4).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.config import KVTransferConfig
from engine.core.hashing import encode_fields, sha256
from engine.core.request import Request


@dataclass(frozen=True)
class KVIdentity:
    """Properties that two engines must share before one may read the other's blocks."""

    model_fingerprint: str
    dtype: str
    """Resolved dtype of the stored KV: float32, bfloat16, ..."""
    block_shape: tuple[int, ...]
    """[layers, 2, kv_heads, block_size, head_dim]: one block, as it lies in memory."""
    block_bytes: int

    @property
    def digest(self) -> bytes:
        """32 bytes that identify all fields."""
        shape = f"{'x'.join(map(str, self.block_shape))}/{self.block_bytes}"
        return sha256(encode_fields(model=self.model_fingerprint, dtype=self.dtype, shape=shape))


@dataclass(slots=True)
class BlockTransfer:
    """Blocks on their way in or out."""

    transfer_id: int
    """Unique, unlike the request's id, which may be used again while the transfer still runs."""
    block_ids: list[int]
    """This engine's blocks, in the order of the prefix."""
    block_hashes: list[bytes]
    params: dict[str, Any]
    """`kv_transfer_params`: for a load, those of the request; for a save, those of its last output."""


@dataclass(slots=True)
class KVConnectorMetadata:
    """Message to the worker half with each step. Transfers of an interrupted step are repeated."""

    loads: list[BlockTransfer] = field(default_factory=list)
    saves: list[BlockTransfer] = field(default_factory=list)
    releases: list[dict[str, Any]] = field(default_factory=list)
    """`kv_transfer_params` whose blocks this engine does not need: their producer may release them."""


@dataclass(slots=True)
class KVConnectorOutput:
    """Transfers that ended since the last step. Every load and save ends exactly once, even after a failure."""

    finished_recving: dict[int, int] = field(default_factory=dict)
    """transfer_id -> number of its leading blocks that arrived complete and verified."""
    finished_sending: list[int] = field(default_factory=list)
    """Transfers whose blocks are no longer read: sent, given up, or not fetched in time."""
    num_save_failures: int = 0
    """Finished sends that lost at least one block."""
    num_bytes_received: int = 0
    """Bytes of KV in verified blocks."""
    num_bytes_sent: int = 0


class KVConnectorScheduler(Protocol):
    """The half beside the scheduler: knows which KV exists elsewhere, touches no KV, never blocks.

    An attribute `source` (disk, p2p) names that place in `cached_tokens_by_source`.
    """

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> int | None:
        """Return how many tokens behind the first `num_computed_tokens` have KV elsewhere; None if it did not look.

        Asked until the request starts or its load begins, so it must not change any state.
        """

    def update_state_after_alloc(self, request: Request, num_external_tokens: int) -> None:
        """Note the decision, once per request: this many tokens are loaded, or 0."""

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Return whether the blocks of a request that ended must stay until they are reported as sent, and the
        `kv_transfer_params` of its last output. block_ids: its full, written blocks; none if it was aborted or failed.
        """

    def build_connector_meta(self, loads: list[BlockTransfer], saves: list[BlockTransfer]) -> Any:
        """Build the message to the worker half for the next step; it must pickle. None if there is none."""


class KVConnectorWorker(Protocol):
    """The half beside the KV cache: moves bytes in its own threads while steps go on."""

    address: dict[str, Any]
    """Passed to the scheduler half, for example host and port."""

    def start_load_kv(self, metadata: Any) -> None:
        """Begin those of the step's loads that are new. Report each load once, with verified blocks only."""

    def save_kv(self, metadata: Any) -> None:
        """Begin the step's saves. Their blocks do not change until they are reported as sent."""

    def get_finished(self, timeout_s: float) -> KVConnectorOutput | None:
        """Return what ended since the last call, waiting up to `timeout_s` seconds; None if nothing did."""

    def shutdown(self) -> None:
        """Stop all transfers and release sockets, files and memory."""


class KVConnector(Protocol):
    """A class that makes both halves; `kv_transfer_config["kv_connector"]` names it."""

    @classmethod
    def check_config(cls, config: KVTransferConfig) -> None:
        """Raise ConfigError for invalid extra settings."""

    @classmethod
    def make_worker(cls, config: KVTransferConfig, identity: KVIdentity, blocks: Any) -> KVConnectorWorker:
        """Make the worker half. blocks: `engine.transfer.blocks.KVBlocks`, the cache as bytes."""

    @classmethod
    def make_scheduler(
        cls, config: KVTransferConfig, block_size: int, address: dict[str, Any]
    ) -> KVConnectorScheduler:
        """Make the scheduler half. address: that of the worker half."""

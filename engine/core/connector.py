"""The seam through which KV leaves one engine and enters another.

A connector has two halves, because scheduler and worker may live in different processes:

                 engine A (prefill)                              engine B (decode)
      scheduler half | worker half                     worker half | scheduler half
                     |                                             |
    request_finished |                                             | get_num_new_matched_tokens
     "keep 3 blocks" | save_kv  ---- blocks, by hash ---->  start_load_kv | "3 blocks are over there"
     release blocks <- get_finished                  get_finished -> publish blocks: now a prefix hit

Blocks travel by hash. Equal hashes mean equal KV (`engine/core/hashing.py`), so what arrives is simply a
prefix that the cache knows from then on, and the request that waited for it starts behind a longer hit.
What does not arrive, or arrives damaged, is never published: the request computes it.

Ours is simpler than vLLM's KVConnectorBase_V1 (distributed/kv_transfer/kv_connector/v1/base.py) in two ways. A
request waits outside the batch until its blocks are there, and a finished one keeps its blocks until they are
gone, so nothing waits layer by layer inside a forward pass (no wait_for_layer_load, save_kv_layer,
wait_for_save). And a block is one run of bytes with a name of its own, so it can be checked on its own.
The idea of splitting prefill from decode: DistServe (OSDI 2024, section 3), Splitwise (ISCA 2024, section 4).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.config import KVTransferConfig
from engine.core.hashing import encode_fields, sha256
from engine.core.request import Request


@dataclass(frozen=True)
class KVIdentity:
    """What two engines must have in common before one may read the other's blocks."""

    model_fingerprint: str
    dtype: str
    """Of the stored KV, resolved: float32, bfloat16, ..."""
    block_shape: tuple[int, ...]
    """[layers, 2, kv_heads, block_size, head_dim]: one block, as it lies in memory."""
    block_bytes: int

    @property
    def digest(self) -> bytes:
        """32 bytes that stand for all of it."""
        shape = "x".join(map(str, self.block_shape))
        return sha256(
            encode_fields(model=self.model_fingerprint, dtype=self.dtype, shape=f"{shape}/{self.block_bytes}")
        )


@dataclass(slots=True)
class BlockTransfer:
    """Blocks on their way in or out."""

    transfer_id: int
    """Not the request's id: that may be used again while the transfer of its first life still runs."""
    block_ids: list[int]
    """Where they lie here, in the order of the prefix."""
    block_hashes: list[bytes]
    params: dict[str, Any]
    """A load: the `kv_transfer_params` that came with the request, saying where its KV is. A save: those
    that its last output took along."""


@dataclass(slots=True)
class KVConnectorMetadata:
    """What the worker half is told with a step: again, if the step before was interrupted."""

    loads: list[BlockTransfer] = field(default_factory=list)
    saves: list[BlockTransfer] = field(default_factory=list)
    releases: list[dict[str, Any]] = field(default_factory=list)
    """`kv_transfer_params` whose blocks nobody here needs: their producer may let go of them."""


@dataclass(slots=True)
class KVConnectorOutput:
    """What ended since the last step. Every load and every save ends exactly once, whatever goes wrong."""

    finished_recving: dict[int, int] = field(default_factory=dict)
    """transfer_id -> how many of its leading blocks are there, complete and verified."""
    finished_sending: list[int] = field(default_factory=list)
    """Transfers whose blocks are not read any more: sent, given up, or never fetched in time."""
    num_save_failures: int = 0
    """Of the finished sends, those whose blocks did not all get where they should."""
    num_bytes_received: int = 0
    """Bytes of KV in verified blocks."""
    num_bytes_sent: int = 0


class KVConnectorScheduler(Protocol):
    """The half beside the scheduler: knows what exists elsewhere, touches no KV, never blocks.

    It may say in `source` where that is (disk, p2p): cached tokens are counted by it.
    """

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> int | None:
        """How many tokens behind the first `num_computed_tokens` have KV elsewhere; None: did not look.

        Asked until the request starts or its load begins, so it must not change anything.
        """
        ...

    def update_state_after_alloc(self, request: Request, num_external_tokens: int) -> None:
        """The decision, once per request: so many tokens are loaded; 0 if it starts without."""
        ...

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """A request leaves; `block_ids` are its full, written blocks (none if it was aborted or failed).

        Returns whether they must stay until the worker half reports them as sent, and the
        `kv_transfer_params` for its last output.
        """
        ...

    def build_connector_meta(self, loads: list[BlockTransfer], saves: list[BlockTransfer]) -> Any:
        """What the worker half gets with the next step; must pickle. None if there is nothing to say."""
        ...


class KVConnectorWorker(Protocol):
    """The half beside the KV cache: moves bytes in threads of its own, so that steps go on meanwhile."""

    address: dict[str, Any]
    """What the scheduler half should know of it, such as where it can be reached."""

    def start_load_kv(self, metadata: Any) -> None:
        """Begin the step's loads, those that it does not know. Only blocks that were verified may be
        reported, each load once."""
        ...

    def save_kv(self, metadata: Any) -> None:
        """Offer the step's saves. Their blocks do not change until they are reported as sent."""
        ...

    def get_finished(self, timeout_s: float) -> KVConnectorOutput | None:
        """What ended since the last call; waits up to `timeout_s` for something to end. None: nothing."""
        ...

    def shutdown(self) -> None:
        """Stop all transfers and give back sockets, files and memory."""
        ...


class KVConnector(Protocol):
    """What `kv_transfer_config["kv_connector"]` names: a class that makes both halves."""

    @classmethod
    def check_config(cls, config: KVTransferConfig) -> None:
        """Raise ConfigError for extra settings that cannot work."""
        ...

    @classmethod
    def make_worker(cls, config: KVTransferConfig, identity: KVIdentity, blocks: Any) -> KVConnectorWorker:
        """blocks: `engine.transfer.blocks.KVBlocks`, the cache as bytes."""
        ...

    @classmethod
    def make_scheduler(
        cls, config: KVTransferConfig, block_size: int, address: dict[str, Any]
    ) -> KVConnectorScheduler:
        """address: that of the worker half."""
        ...

"""Scheduler half of connectors: blocks that exist elsewhere, and blocks promised to other engines.

    router -> prefill engine    kv_transfer_params = {do_remote_decode: True}, max_tokens = 1
    router <- prefill engine    kv_transfer_params = {do_remote_prefill: True, remote_num_blocks, handle, address}
    router -> decode engine     the same params and the same prompt: the first remote_num_blocks are fetched

The names are vLLM's (kv_connector/v1/nixl). Blocks are requested by hash and both engines hash alike, so the
params carry a count instead of block ids.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from itertools import count
from typing import Any

from engine.config import KVTransferConfig
from engine.core.connector import BlockTransfer, KVConnectorMetadata
from engine.core.request import Request

logger = logging.getLogger(__name__)


class HandoffScheduler:
    """Promise the blocks of finished requests, and redeem promises in the params of requests."""

    source = "p2p"

    def __init__(
        self,
        config: KVTransferConfig,
        block_size: int,
        address: dict[str, Any],
        *,
        contains: Callable[[bytes], bool] | None = None,
        source: str | None = None,
    ) -> None:
        """contains: returns whether a store has a block of this hash; with it every finished request is saved there."""
        if source:
            self.source = source
        self._config, self._block_size, self._address, self._contains = config, block_size, address, contains
        self._handles = (f"{uuid.uuid4().hex}-{number}" for number in count())
        self._releases: list[dict[str, Any]] = []

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> int | None:
        """Return the blocks that the request's params promise, then those that the store has."""
        if not self._config.is_consumer:
            return None
        first = num_computed_tokens // self._block_size
        end = max(first, _num_promised(request))
        if self._contains is not None:
            while end < len(request.block_hashes) and self._contains(request.block_hashes[end]):
                end += 1
        return (end - first) * self._block_size

    def update_state_after_alloc(self, request: Request, num_external_tokens: int) -> None:
        if not num_external_tokens:
            self._release(request)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        if not request.has_fetched:
            self._release(request)
        params = request.kv_transfer_params or {}
        is_awaited = bool(params.get("do_remote_decode"))
        if not self._config.is_producer or not block_ids or not (is_awaited or self._contains):
            return False, None
        if not is_awaited:
            return True, None
        promise = {"do_remote_prefill": True, "do_remote_decode": False, "remote_num_blocks": len(block_ids)}
        return True, {**promise, "remote_handle": next(self._handles), **self._address}

    def build_connector_meta(
        self, loads: list[BlockTransfer], saves: list[BlockTransfer]
    ) -> KVConnectorMetadata | None:
        releases, self._releases = self._releases, []
        return KVConnectorMetadata(loads, saves, releases) if loads or saves or releases else None

    def _release(self, request: Request) -> None:
        """Release the producer of a request that needs none of the promised blocks."""
        if self._config.is_consumer and _num_promised(request):
            self._releases.append(request.kv_transfer_params or {})


def _num_promised(request: Request) -> int:
    params = request.kv_transfer_params or {}
    num_blocks = params.get("remote_num_blocks") if params.get("do_remote_prefill") is True else 0
    if isinstance(num_blocks, int) and num_blocks >= 0:
        return int(num_blocks)
    message = "request %s: remote_num_blocks is %r, not a count: it computes all itself"
    logger.warning(message, request.request_id, num_blocks)
    return 0

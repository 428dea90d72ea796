"""E12: what the books cost: block tables on the device, hashes and block records on the host."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

from engine.core.blocks import BlockPool
from engine.core.hashing import sha256
from quizzes.experiments import Context, experiment
from quizzes.experiments.memory._shapes import (
    BlockSize,
    HeadDim,
    Heads,
    KvDtype,
    Layers,
    attention_shape,
    deployment_of,
)

TABLE_ENTRY_BYTES = 4
"""A block id in the device's block table is an int32, in vLLM and here."""


@dataclass(frozen=True)
class Overhead:
    """Of one block."""

    kv_bytes: Annotated[int, "B"]
    table_bytes: Annotated[int, "B"]
    """On the device."""
    digest_bytes: Annotated[int, "B"]
    """On the host, with prefix caching."""
    record_bytes: Annotated[int, "B"]
    """On the host: the Block object, its id, its hash and their places in the pool's list and index. It depends on the
    version of Python."""
    table_share: Annotated[float, "share"]
    """Of the KV bytes: what the device pays."""
    host_share: Annotated[float, "share"]
    """record_bytes of the KV bytes, in another memory."""


@experiment("E12")
def metadata(
    ctx: Context,
    *,
    layers: Layers = 32,
    kv_heads: Heads = 8,
    head_dim: HeadDim = 128,
    kv_dtype: KvDtype = "bfloat16",
    block_size: BlockSize = 16,
) -> Overhead:
    """Bytes of bookkeeping per KV block beside the bytes of the block."""
    per_token = deployment_of(attention_shape(layers, kv_heads, head_dim), kv_dtype).kv_bytes_per_token
    kv_bytes = int(per_token) * block_size
    (block,) = BlockPool(1001).take(1000)[-1:]
    digest = sha256(b"tokens of a block")
    pointers = 8 + 3 * 8  # its place in the pool's list; hash, key and value of the index, half of it empty
    record = sys.getsizeof(block) + sys.getsizeof(block.block_id) + sys.getsizeof(digest) + pointers
    return Overhead(
        kv_bytes=kv_bytes,
        table_bytes=TABLE_ENTRY_BYTES,
        digest_bytes=len(digest),
        record_bytes=record,
        table_share=TABLE_ENTRY_BYTES / kv_bytes,
        host_share=record / kv_bytes,
    )

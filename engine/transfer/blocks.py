"""A block as bytes: read and write it in the KV cache, and wrap it for a file or a socket.

The cache is block-major (engine/worker/kv_cache.py), so a block is contiguous and moving it is a copy:

    kv       [num_blocks, layers, 2, kv_heads, block_size, head_dim]
    block i  = bytes [i * block_bytes, (i + 1) * block_bytes), the scales of a quantised cache included

All connectors use one packet format, so that a truncated file, a damaged frame and a peer with another model are
handled alike: `check` raises, the block is not published, and its request recomputes it.

    "PKV1" | identity, 32 bytes | block hash, 32 bytes | CRC-32 of the content | length | content
"""

from __future__ import annotations

import struct
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from engine.core.connector import KVIdentity
from prep_common.text import counted

MAGIC = b"PKV1"
_HEADER = struct.Struct("<4s32s32sIQ")
HEADER_BYTES = _HEADER.size


class TransferError(Exception):
    """KV that could not be transferred; it is recomputed."""


class KVBlocks:
    """Blocks of a cache, read and written from the connector's threads.

    Safe beside a running step: blocks that are read are published and no longer change, and blocks that are written
    belong to a load and are used by no row of a step.
    """

    def __init__(self, blocks: Tensor) -> None:
        """blocks: the whole cache, [num_blocks, ...]."""
        self._blocks = blocks.view(torch.uint8).flatten(1)
        self.num_blocks, self.block_bytes = self._blocks.shape

    def read(self, block_id: int) -> bytes:
        """Return a copy of the block."""
        return self._blocks[block_id].cpu().numpy().tobytes()

    def write(self, block_id: int, data: bytes | bytearray | memoryview) -> None:
        """Fill the block; `data` has exactly `block_bytes` bytes."""
        if len(data) != self.block_bytes:
            raise ValueError(f"a block has {counted(self.block_bytes, 'byte')}, got {len(data)}")
        self._blocks[block_id].copy_(torch.from_numpy(np.frombuffer(bytearray(data), np.uint8)))


def identity_of(model_fingerprint: str, kv: Tensor, block_bytes: int) -> KVIdentity:
    """Return the identity that another engine's blocks must have; kv [num_blocks, ...]: the cache."""
    dtype = str(kv.dtype).removeprefix("torch.")
    return KVIdentity(model_fingerprint, dtype, tuple(kv.shape[1:]), block_bytes)


def pack_header(identity: bytes, block_hash: bytes, content: bytes) -> bytes:
    """Return the header of a block. identity: `KVIdentity.digest`."""
    return _HEADER.pack(MAGIC, identity, _padded(block_hash), crc32(content), len(content))


def check(header: bytes | bytearray, content: bytearray, identity: bytes, block_hash: bytes) -> None:
    """Raise TransferError unless the content is the complete, requested block."""
    if len(header) != HEADER_BYTES or header[:4] != MAGIC:
        raise TransferError("what came is not a KV block")
    _, its_identity, its_hash, checksum, num_bytes = _HEADER.unpack(header)
    if its_identity != identity:
        raise TransferError("the block belongs to another model, KV type or block shape")
    if its_hash != _padded(block_hash):
        raise TransferError("the block is not the one asked for: its hash differs")
    if len(content) != num_bytes:
        raise TransferError(f"the block was cut: {len(content)} of {num_bytes} bytes")
    if crc32(content) != checksum:
        raise TransferError("the block is damaged: its checksum differs")


def _padded(block_hash: bytes) -> bytes:
    """Pad or cut a hash of another digest than sha256 to 32 bytes."""
    return block_hash[:32].ljust(32, b"\0")

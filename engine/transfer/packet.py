"""Wire and file format of a block: identity, hash, checksum, content.

    "PKV1" | identity, 32 bytes | block hash, 32 bytes | CRC-32 of the content | length | content

All connectors use it, so that a truncated file, a damaged frame and a peer with another model are handled alike:
`unpack` raises, the block is not published, and its request recomputes it.
"""

from __future__ import annotations

import struct
from zlib import crc32

MAGIC = b"PKV1"
_HEADER = struct.Struct("<4s32s32sIQ")
HEADER_BYTES = _HEADER.size


class TransferError(Exception):
    """KV that could not be transferred; it is recomputed."""


def pack_header(identity: bytes, block_hash: bytes, content: bytes) -> bytes:
    """Return the header of a block. identity: `KVIdentity.digest`."""
    return _HEADER.pack(MAGIC, identity, _padded(block_hash), crc32(content), len(content))


def check(header: bytes, content: bytes | bytearray, identity: bytes, block_hash: bytes) -> None:
    """Return the content. Raises TransferError unless it is the complete, requested block."""
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

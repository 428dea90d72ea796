"""Names for cached blocks: a hash that stands for a block's tokens and everything before them.

    root --+--> hash_0 --+--> hash_1 --+--> hash_2
           |             |             |
        tokens of     tokens of     tokens of
         block 0       block 1       block 2

Equal hashes mean equal KV: `hash_i` covers the tokens of blocks 0..i and, through the root, whatever
else shapes their keys and values. A request's hashes grow with its full blocks and never change.
Source: vLLM v1/core/kv_cache_utils.py; ours tags every part of the root.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable

from engine.core.encoder_cache import MultiModalFeature
from engine.core.errors import HashCollisionError
from engine.core.request import Request

Digest = Callable[[bytes], bytes]


def sha256(data: bytes) -> bytes:
    """32 bytes. Slower than xxhash by microseconds; an attacker cannot aim at another tenant's blocks."""
    return hashlib.sha256(data).digest()


def encode_fields(**fields: str | None) -> bytes:
    """Write named fields so that no two different sets read the same.

    Each field is its name, then `-` for None or `=` and the value, both with their length in front:
    a salt that spells an adapter's name, or a value that contains a separator, stays what it is.
    """
    parts: list[bytes] = []
    for name, value in fields.items():
        label = name.encode()
        parts.append(struct.pack("<I", len(label)) + label)
        if value is None:
            parts.append(b"-")
        else:
            content = value.encode("utf-8", "surrogatepass")
            parts.append(b"=" + struct.pack("<Q", len(content)) + content)
    return b"".join(parts)


def _encode_images(features: list[MultiModalFeature], start: int, end: int) -> bytes:
    """What the placeholders among tokens [start, end) stand for: each image's content, and which part of it."""
    return b"".join(
        encode_fields(image=feature.mm_hash, at=str(feature.offset - start))
        for feature in features
        if feature.overlaps(start, end)
    )


class BlockHasher:
    """Extends a request's chain of block hashes. The same in every process that runs the same model."""

    def __init__(
        self,
        block_size: int,
        *,
        model_fingerprint: str = "",
        kv_cache_dtype: str = "auto",
        digest: Digest = sha256,
        detect_collisions: bool = False,
    ) -> None:
        self.block_size = block_size
        self.model_fingerprint = model_fingerprint
        self.kv_cache_dtype = kv_cache_dtype
        self._digest = digest
        self._encode_tokens = struct.Struct(f"<{block_size}q").pack
        self._content_of: dict[bytes, bytes] | None = {} if detect_collisions else None

    def root(self, lora_key: str | None, cache_salt: str | None) -> bytes:
        """The start of a chain: requests with different roots never share a block."""
        return self._hash(
            encode_fields(
                model=self.model_fingerprint, kv_dtype=self.kv_cache_dtype, lora=lora_key, salt=cache_salt
            )
        )

    def extend(self, request: Request) -> None:
        """Append the hashes of the blocks that `request.token_ids` has filled since the last call."""
        hashes, size = request.block_hashes, self.block_size
        num_full_blocks = len(request.token_ids) // size
        if len(hashes) >= num_full_blocks:
            return
        parent = hashes[-1] if hashes else self.root(request.lora_key, request.cache_salt)
        for index in range(len(hashes), num_full_blocks):
            tokens = request.token_ids[index * size : (index + 1) * size]
            content = self._encode_tokens(*tokens)
            if request.mm_features:
                content += _encode_images(request.mm_features, index * size, (index + 1) * size)
            parent = self._hash(parent + content)
            hashes.append(parent)

    def _hash(self, content: bytes) -> bytes:
        digest = self._digest(content)
        if self._content_of is not None and self._content_of.setdefault(digest, content) != content:
            raise HashCollisionError(
                f"two different prefixes share the block hash {digest.hex()}: a request would read another's "
                "KV. Use sha256, the default digest."
            )
        return digest

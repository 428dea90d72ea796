"""Block hashes: a hash identifies a block's tokens and everything before them.

    root --+--> hash_0 --+--> hash_1 --+--> hash_2
           |             |             |
        tokens of     tokens of     tokens of
         block 0       block 1       block 2

Equal hashes mean equal KV: `hash_i` covers the tokens of blocks 0..i and, through the root, everything else that shapes
their keys and values. A request's hashes grow with its full blocks and never change. Source: vLLM
v1/core/kv_cache_utils.py; here every part of the root is tagged.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable

from engine.core.errors import HashCollisionError
from engine.core.request import Request

Digest = Callable[[bytes], bytes]


def sha256(data: bytes) -> bytes:
    """Return 32 bytes. Microseconds slower than xxhash, but an attacker cannot construct a collision."""
    return hashlib.sha256(data).digest()


def encode_fields(**fields: str | None) -> bytes:
    """Encode named fields so that two different sets never have the same encoding.

    Each field is its name, then `-` for None or `=` and the value. Lengths come first, so a salt that equals an
    adapter's name, or a value with a separator in it, is unambiguous.
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


class BlockHasher:
    """Extends a request's chain of block hashes. All processes with the same model compute the same hashes."""

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
        """Return the start of a chain. Requests with different roots never share a block."""
        model, kv_dtype = self.model_fingerprint, self.kv_cache_dtype
        return self._hash(encode_fields(model=model, kv_dtype=kv_dtype, lora=lora_key, salt=cache_salt))

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
            for image in request.mm_features:
                if image.overlaps(index * size, (index + 1) * size):  # its content, and which part
                    content += encode_fields(image=image.mm_hash, at=str(image.offset - index * size))
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

"""Messages to the browser: JSON and numbers in one compressed piece.

    envelope   u32 length | JSON {"parts": [{"key", "length"}, ...], ...} | part | part | ...
    part       zlib of: u32 length | JSON {..., "arrays": [[name, type, count], ...]} | arrays

Numbers are little-endian, each array begins at a multiple of 8 bytes. `store.js` reads what this writes.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ALIGN = 8
_FAST = 1
"""zlib level: the bytes travel over loopback, so time matters more than size."""


def pack(meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]] | None = None) -> bytes:
    """One part."""
    arrays = arrays or {}
    directory = [[name, array.dtype.str[1:], len(array)] for name, array in arrays.items()]
    head = _json({**meta, "arrays": directory})
    pieces = [struct.pack("<I", len(head)), head]
    position = 4 + len(head)
    for array in arrays.values():
        pieces.append(b"\0" * (-position % _ALIGN))
        pieces.append(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes())
        position += len(pieces[-2]) + len(pieces[-1])
    return zlib.compress(b"".join(pieces), _FAST)


def envelope(head: Mapping[str, Any], parts: Mapping[str, bytes]) -> bytes:
    """Build one message from its parts by key."""
    listing = [{"key": key, "length": len(part)} for key, part in parts.items()]
    text = _json({**head, "parts": listing})
    return struct.pack("<I", len(text)) + text + b"".join(parts.values())


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")

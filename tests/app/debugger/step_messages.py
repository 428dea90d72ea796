"""Decode what the page Step sends to the browser, as `store.js` does."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ALIGN = 8


def unpack(part: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Undo `pack`."""
    data = zlib.decompress(part)
    (length,) = struct.unpack_from("<I", data)
    meta: dict[str, Any] = json.loads(data[4 : 4 + length])
    position = 4 + length
    arrays: dict[str, NDArray[Any]] = {}
    for name, kind, count in meta.pop("arrays"):
        position += -position % _ALIGN
        arrays[name] = np.frombuffer(data, f"<{kind}", count, position)
        position += arrays[name].nbytes
    return meta, arrays


def open_envelope(data: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Undo `envelope`."""
    (length,) = struct.unpack_from("<I", data)
    head: dict[str, Any] = json.loads(data[4 : 4 + length])
    position = 4 + length
    parts: dict[str, bytes] = {}
    for entry in head.pop("parts"):
        parts[entry["key"]] = data[position : position + entry["length"]]
        position += entry["length"]
    return head, parts

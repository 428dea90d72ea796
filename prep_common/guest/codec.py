"""Values that cross between checker and guest: plain data, arrays, and references. Never pickles.

A frame is a header (two lengths), JSON, and the raw bytes that the JSON refers to:

    None, bool, int, float, str          as JSON
    list                                 [..., ...]
    everything else                      {"t": "tuple", "v": [...]}, {"t": "tensor", "dtype": ..., "at": 0, "size": 8}

Decoding builds exact builtin types, arrays and tensors only. An object that equals everything does not survive.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

HEADER = struct.Struct(">QQ")
MAX_DEPTH = 100
MAX_JSON_BYTES = 32 << 20
MOST_GAPS = 8
"""A view of at most so many times its own numbers crosses with them, and stays a view; others are copied."""
_PLAIN = {type(None), bool, int, float, str}
_DTYPES = {
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
}  # fmt: skip
_INSIDE: dict[type, Callable[[Any], Any]] = {int: int.__int__, float: float.__float__, str: str.__str__}

Reference = Callable[[Any], dict[str, Any]]
"""Describes an object that does not cross itself."""


class BadFrame(ValueError):
    """The other side sent something that is not a value."""


class TooLarge(ValueError):
    """A value is larger than a message may be."""


def encode(message: Any, reference: Reference, max_bytes: int) -> bytes:
    """Return the frame of a message. Raises TooLarge, and what `reference` raises."""
    blobs: list[bytes] = []
    text = json.dumps(_Encoder(reference, blobs, max_bytes).encode(message, 0)).encode()
    size = sum(map(len, blobs))
    if len(text) > MAX_JSON_BYTES or size > max_bytes:
        raise TooLarge(f"more than {min(MAX_JSON_BYTES, max_bytes) >> 20} MiB")
    return b"".join([HEADER.pack(len(text), size), text, *blobs])


def decode(text: bytes, blobs: bytes, refer: Callable[[dict[str, Any]], Any]) -> Any:
    """Return the message of a frame. `refer` returns the object that a reference names. Raises BadFrame."""
    try:
        return _decode(json.loads(text), memoryview(blobs), refer, 0)
    except BadFrame:
        raise
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError,
            RuntimeError, MemoryError) as error:  # fmt: skip
        raise BadFrame(f"{type(error).__name__}: {error}") from None


class _Encoder:
    def __init__(self, reference: Reference, blobs: list[bytes], max_bytes: int) -> None:
        self.reference, self.blobs, self.max_bytes = reference, blobs, max_bytes
        self.items = self.size = 0

    def encode(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind is int and value.bit_length() > 10_000:
            raise TooLarge(f"an integer of {value.bit_length():,} bits")
        if kind is str and len(value) > MAX_JSON_BYTES:
            raise TooLarge(f"a text of {len(value):,} characters")
        if kind in _PLAIN:
            return value
        if depth > MAX_DEPTH:
            raise TooLarge(f"nested deeper than {MAX_DEPTH} levels")
        if kind is list:
            return self._items(value, depth)
        if kind in (tuple, set, frozenset):
            return {"t": kind.__name__, "v": self._items(list(value), depth)}
        if kind is dict:
            return {
                "t": "dict",
                "v": [self._items(list(value), depth), self._items(list(value.values()), depth)],
            }
        if kind in (bytes, bytearray):
            return {"t": "bytes", **self._blob(bytes(value))}
        if kind in (slice, range):
            parts = [value.start, value.stop, value.step]
            return {"t": kind.__name__, "v": self._items(parts, depth)}
        if kind is complex:
            return {"t": "complex", "v": [value.real, value.imag]}
        return self._array(value) or self._builtin(value, depth) or self.reference(value)

    def _items(self, values: list[Any], depth: int) -> list[Any]:
        self.items += len(values)
        if self.items > MAX_JSON_BYTES // 8:
            raise TooLarge(f"more than {MAX_JSON_BYTES // 8:,} items")
        return [self.encode(value, depth + 1) for value in values]

    def _array(self, value: Any) -> dict[str, Any] | None:
        torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        if torch is not None and isinstance(value, torch.Tensor):
            name = str(value.dtype).partition(".")[2]
            if name not in _DTYPES:
                raise TypeError(f"a tensor of {value.dtype} cannot leave the process")
            view, value = _strides(value), _whole(value)
            self._room(value.numel() * value.element_size())
            flat = value.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
            data = flat.view(torch.uint8).numpy().tobytes() if len(flat) else b""
            return {"t": "tensor", "dtype": name, "shape": list(value.shape), **view, **self._blob(data)}
        if torch is not None and isinstance(value, torch.dtype):
            return {"t": "dtype", "v": str(value).partition(".")[2]}
        if numpy is not None and isinstance(value, numpy.ndarray) and value.dtype.name in _DTYPES:
            self._room(value.nbytes)
            data = numpy.ascontiguousarray(value).tobytes()
            return {"t": "array", "dtype": value.dtype.name, "shape": list(value.shape), **self._blob(data)}
        if numpy is not None and isinstance(value, numpy.generic) and value.dtype.name in _DTYPES:
            return {"t": "scalar", "v": self.encode(value.item(), MAX_DEPTH)}
        return None

    def _builtin(self, value: Any, depth: int) -> Any:
        """Return the builtin value inside an instance of a subclass, such as an IntEnum or a defaultdict."""
        for kind in (int, float, str):
            if isinstance(value, kind):
                plain = _INSIDE[kind](value)
                return {"t": "scalar", "v": self.encode(plain, depth + 1)}
        if isinstance(value, dict):
            return self.encode(dict(dict.items(value)), depth + 1)
        if isinstance(value, list):
            return {"t": "list", "v": self._items(list(list.__iter__(value)), depth)}
        return None

    def _room(self, size: int) -> None:
        self.size += size
        if self.size > self.max_bytes:
            raise TooLarge(f"more than {self.max_bytes >> 20} MiB")

    def _blob(self, data: bytes) -> dict[str, int]:
        at = sum(map(len, self.blobs))
        self.blobs.append(data)
        return {"at": at, "size": len(data)}


def _is_spread(value: Any) -> bool:
    """Return whether a tensor is a view with gaps or another order, such as one layer of a cache: it arrives as one."""
    if value.is_conj() or value.is_neg():
        return False
    spread = (
        not value.is_contiguous() and value.device.type == "cpu" and 0 not in value.stride() and value.numel()
    )
    return (
        bool(spread) and value.untyped_storage().nbytes() <= MOST_GAPS * value.numel() * value.element_size()
    )


def _strides(value: Any) -> dict[str, Any]:
    if not _is_spread(value):
        return {}
    view = [list(value.shape), list(value.stride()), value.storage_offset()]
    return {"view": view}


def _whole(value: Any) -> Any:
    """Return the memory that a view shows, as one row; other tensors as they are."""
    if not _is_spread(value):
        return value
    numbers = value.untyped_storage().nbytes() // value.element_size()
    return value.detach().as_strided((numbers,), (1,), 0)


def _decode(value: Any, blobs: memoryview, refer: Callable[[dict[str, Any]], Any], depth: int) -> Any:
    kind = type(value)
    if kind is list:
        return [_decode(item, blobs, refer, depth + 1) for item in value]
    if kind is not dict:
        return value
    if depth > 2 * MAX_DEPTH:
        raise BadFrame("nested too deeply")
    tag = value["t"]
    if tag in ("list", "tuple", "set", "frozenset", "slice", "range"):
        items = [_decode(item, blobs, refer, depth + 1) for item in value["v"]]
        return _SEQUENCES[tag](items)
    if tag == "dict":
        keys, values = (_decode(part, blobs, refer, depth + 1) for part in value["v"])
        return dict(zip(keys, values, strict=True))
    if tag == "scalar":
        return _decode(value["v"], blobs, refer, depth + 1)
    if tag == "complex":
        return complex(*value["v"])
    if tag == "bytes":
        return _bytes(value, blobs)
    if tag == "array":
        return _numpy(value, _bytes(value, blobs))
    if tag in ("tensor", "dtype"):
        return _torch(value, blobs)
    return refer(value)


_SEQUENCES: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "slice": lambda parts: slice(*parts),
    "range": lambda parts: _range(*parts),
}


def _range(*parts: int) -> range:
    numbers = range(*parts)
    if len(numbers) > MAX_JSON_BYTES:  # the checker may make a list of it
        raise BadFrame("a range that is too long")
    return numbers


def _bytes(value: dict[str, Any], blobs: memoryview) -> bytes:
    at, size = value["at"], value["size"]
    if type(at) is not int or type(size) is not int or not 0 <= at <= at + size <= len(blobs):
        raise BadFrame("bytes outside of the frame")
    return bytes(blobs[at : at + size])


def _shape(value: dict[str, Any]) -> list[int]:
    shape = value["shape"]
    if value["dtype"] not in _DTYPES or any(type(size) is not int or size < 0 for size in shape):
        raise BadFrame("not an array")
    return list(shape)


def _numpy(value: dict[str, Any], data: bytes) -> Any:
    numpy = import_module("numpy")

    return numpy.frombuffer(data, dtype=numpy.dtype(value["dtype"])).reshape(_shape(value)).copy()


def _torch(value: dict[str, Any], blobs: memoryview) -> Any:
    torch = import_module("torch")

    if value["t"] == "dtype":
        restored = vars(torch).get(value["v"])
        if not isinstance(restored, torch.dtype):
            raise BadFrame("not a dtype")
        return restored
    shape, data = _shape(value), bytearray(_bytes(value, blobs))
    dtype = getattr(torch, value["dtype"])
    if not data:
        if 0 not in shape:
            raise BadFrame("a tensor without data")
        return torch.empty(shape, dtype=dtype)
    restored = torch.frombuffer(data, dtype=dtype).reshape(shape)
    return restored if "view" not in value else _view(restored, *value["view"])


def _view(whole: Any, shape: list[int], stride: list[int], offset: int) -> Any:
    """Return a view of a row of numbers. Raises BadFrame if it reaches outside."""
    whats = [*shape, *stride, offset]
    if any(type(what) is not int or what < 0 for what in whats) or len(shape) != len(stride):
        raise BadFrame("not a view")
    last = offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    if math.prod(shape) > whole.numel() or 0 in shape or last >= whole.numel():
        raise BadFrame("a view outside of its numbers")
    return whole.as_strided(shape, stride, offset)
